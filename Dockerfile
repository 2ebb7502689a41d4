# The server alone: no torch, no compiler. Built from a checkout: docker build -t gradwire-server .
FROM python:3.11-slim AS build
WORKDIR /source
COPY . .
# The pins hold versions only; what is installed is what the `server` extra asks for.
RUN pip wheel --no-cache-dir --wheel-dir /wheels --constraint requirements/dev.txt ".[server]"

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "gradwire[server]" \
  && rm -rf /wheels \
  && useradd --create-home gradwire \
  && install -d -o gradwire -m 0700 /data \
  && install -d -o gradwire -m 0755 /secrets
USER gradwire
ENV GRADWIRE_DATA=/data
VOLUME /data
EXPOSE 8420
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8420/livez', timeout=2)"]
ENTRYPOINT ["gradwire-server"]
# Inside a container nothing is reachable unless a port is published; who publishes it decides about TLS.
CMD ["serve", "--host", "0.0.0.0", "--plain-http"]
