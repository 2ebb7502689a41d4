"""Start the installed server, log in by its link and read the first page, without torch in reach.

Run by `.ci/server-alone` with the Python of an environment that holds `gradwire[server]` and nothing else.
"""

import importlib.util
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

DEADLINE_SECONDS = 60.0


def wait_for(ready: Path, server: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return what the server wrote once it listened."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("the server did not start")
        time.sleep(0.05)
    facts: dict[str, str] = json.loads(ready.read_text())
    return facts


def first_page(url: str, login_link: str) -> str:
    """Log in as the link's page would, and return the page behind it."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    form = urllib.parse.urlencode({"secret": login_link.rpartition("/")[2]}).encode()
    request = urllib.request.Request(f"{url}/login", data=form, headers={"Origin": url})
    with browser.open(request, timeout=10) as answer:
        page: str = answer.read().decode()
        return page


def main() -> None:
    """Exit with an error unless a page arrives and torch is absent."""
    if importlib.util.find_spec("torch") is not None:
        sys.exit("torch is installed here, so this would prove nothing")
    data = Path(sys.argv[1])
    ready = data.with_name("ready.json")
    program = Path(sys.executable).with_name("gradwire-server")
    server = subprocess.Popen([program, "serve", "--port", "0", "--data", data, "--ready-file", ready])
    try:
        facts = wait_for(ready, server)
        page = first_page(facts["url"], facts["login_link"])
    finally:
        server.terminate()
        server.wait(20)
    if "</html>" not in page or "Gradwire" not in page:
        sys.exit(f"not the page that was wanted:\n{page[:2000]}")
    print(f"gradwire[server] alone, without torch, serves its first page ({len(page)} characters)")


if __name__ == "__main__":
    main()
