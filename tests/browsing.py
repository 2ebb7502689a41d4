"""A real Chromium, and persons who use it; everything that a page complains about is collected."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from server_process import ServerProcess

from examples.replay.replay import Replay
from examples.replay.training import Training

expect.set_options(timeout=20_000)

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 20_000

# Two processes on CPU: the words of the pages are then processes, not GPUs.
TOY = Training(
    name="toy",
    device="cpu",
    device_name="EPYC",
    backend="gloo",
    hosts=("node-00",),
    ranks_per_node=2,
    gradient_bytes=30_000_000,
    link_bytes_per_second=125e6,
    total_steps=50_000,
)

REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not installed: apt-get install chromium fonts-noto-cjk")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Person:
    """Somebody with a browser; `complaints` holds errors, refusals of the policy and requests to others."""

    def __init__(self, chromium: Browser, server: ServerProcess, **options: Any) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.requests: list[str] = []
        defaults: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB"}
        self.context: BrowserContext = chromium.new_context(**(defaults | options))
        self.context.set_default_timeout(WAIT_MS)
        self.context.add_init_script(REPORT_VIOLATIONS)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on(
            "dialog", lambda dialog: (self.complaints.append(f"alert: {dialog.message}"), dialog.dismiss())
        )
        self.page.on("request", lambda request: self._ask(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _ask(self, address: str) -> None:
        self.requests.append(address)
        if not address.startswith((self.server.url, "data:", "blob:")):
            self.complaints.append(f"foreign request: {address}")

    def log_in(self) -> Page:
        """Log in by a fresh link, as a person does: open it, press the button."""
        self.page.goto(new_login_link(self.server))
        self.page.locator("main form button").click()
        self.page.wait_for_url(f"{self.server.url}/")
        return self.page

    def see(self, text: str) -> None:
        """Wait until the text is on the page; spaces of any kind match a space."""
        self.page.get_by_text(text).first.wait_for()

    def open(self, path: str) -> Page:
        self.page.goto(self.server.url + path)
        return self.page


def new_login_link(server: ServerProcess) -> str:
    """Return a link that nobody has used, from the command that operators use."""
    command = [sys.executable, "-m", "gradwire_server", "login-link", "--data", str(server.data), "--name", "Ada"]
    command += ["--port", server.url.rpartition(":")[2]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def person(chromium: Browser, server: ServerProcess) -> Iterator[Person]:
    """Somebody logged in at the desk; at the end, nothing may have been complained about."""
    with somebody(chromium, server) as made:
        yield made
        assert made.complaints == []


@contextmanager
def somebody(chromium: Browser, server: ServerProcess, **options: Any) -> Iterator[Person]:
    """Yield a logged-in person with options of the browser's context."""
    made = Person(chromium, server, **options)
    try:
        made.log_in()
        yield made
    finally:
        made.context.close()


@contextmanager
def training(server: ServerProcess, made: Training = TOY, *, num_steps: int = 900) -> Iterator[Replay]:
    """Yield a training that reports every second and answers changes, until the context ends."""
    stop = threading.Event()
    failures: list[BaseException] = []
    with Replay(server.url, server.ingest_token, made) as replay:
        replay.tell(num_steps)

        def go_on() -> None:
            try:
                while not stop.is_set():
                    replay.live(0.95)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield replay
        finally:
            stop.set()
            thread.join(30)
            assert failures == []
