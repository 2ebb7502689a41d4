"""Ways to a server: TLS with a team's own certificates, proxies of the environment, and what is never said."""

import logging
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_stream import attempt_started
from gradwire.transport.batches import encode_record
from gradwire.transport.notices import Notices
from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import Spool
from gradwire.transport.stream import Stream
from gradwire_protocol.identity import new_id
from scripted_server import Reply, ScriptedServer, accepted, wait_until
from server_process import ServerProcess
from stored import count

SECRET = "ingest-secret"


class Way:
    """One record on its way to a server."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        started = attempt_started()
        self.facts = StreamFacts(run=new_id(), attempt=new_id(), model="model", node=0, started=started, server=url)
        self.spool = Spool(folder)
        self.spool.append(encode_record(started), may_use_reserve=True)
        self.stream = Stream(self.spool, self.facts, server=url, token=token, notices=Notices())
        self.stream.start()

    def close(self) -> None:
        self.stream.stop()
        self.spool.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that signs itself, for this machine, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(pem), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return pem, key


@pytest.fixture(scope="module")
def safe_server(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    pem, key = certificate
    arguments = ("--tls-cert", str(pem), "--tls-key", str(key))
    with ServerProcess(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


def test_tls_with_a_certificate_of_the_team_delivers(
    safe_server: ServerProcess,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert safe_server.url.startswith("https://")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    way = Way(tmp_path, safe_server.url, safe_server.ingest_token)
    wait_until(lambda: way.spool.num_waiting == 0, 20.0, lambda: way.stream.trouble)
    way.close()
    assert count(safe_server.database_path, "attempts", way.facts.run) == 1


def test_tls_of_a_stranger_gets_neither_token_nor_data(
    safe_server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    way = Way(tmp_path, safe_server.url, safe_server.ingest_token)
    wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in way.stream.trouble.upper().replace(" ", "_"), 20.0)
    assert way.spool.num_waiting == 1
    way.close()
    assert safe_server.ingest_token not in caplog.text
    assert count(safe_server.database_path, "attempts", way.facts.run) == 0


def test_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(accepted) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        way = Way(tmp_path, "http://gradwire.invalid:8420", SECRET)
        wait_until(lambda: way.spool.num_waiting == 0, 20.0, lambda: way.stream.trouble)
        way.close()
        assert proxy.heard[0].path == "http://gradwire.invalid:8420/api/v1/batches"


def test_https_goes_through_a_tunnel_that_never_sees_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20.0)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        way = Way(tmp_path, "https://gradwire.invalid", SECRET)
        connection, _ = listener.accept()
        with connection:
            asked = connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            greeting = connection.recv(65536)
        way.close()
    assert asked.startswith(b"CONNECT gradwire.invalid:443 ")
    # A TLS record of the kind handshake.
    assert greeting[0] == 0x16
    assert SECRET.encode() not in asked + greeting


@pytest.mark.parametrize("url", ["http://127.0.0.1", "http://localhost"])
def test_own_machine_is_not_asked_for_through_a_proxy(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(accepted) as server, ScriptedServer(Reply(500)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        way = Way(tmp_path, f"{url}:{server.url.rpartition(':')[2]}", SECRET)
        wait_until(lambda: way.spool.num_waiting == 0, 20.0, lambda: way.stream.trouble)
        way.close()
        assert proxy.heard == []


def test_token_is_in_no_log_whatever_the_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), ScriptedServer(Reply(500), Reply(401), accepted) as server:
        way = Way(tmp_path, server.url, SECRET)
        server.wait_for(2)
        assert server.heard[0].headers["authorization"] == f"Bearer {SECRET}"
        way.close()
    assert SECRET not in caplog.text
