"""Make the pictures of the pages: `python -m docs.screenshots`.

A real server is started and made-up trainings (`examples.replay`) are played against it; Chromium then opens the
pages by the login link, as a person would. Nothing on the pictures is drawn by hand.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import BaselineRequest, RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from examples.replay.replay import Replay
from examples.replay.training import Training

FOLDER = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, LIST, PHONE = (1280, 960), (1280, 640), (390, 844)
START_SECONDS, CHART_SECONDS = 60.0, 30.0


@dataclass(frozen=True)
class Ready:
    """Where the server is and what opens it."""

    url: str
    login_link: str
    ingest_token: str
    operator_token: str


@contextmanager
def served(folder: Path) -> Iterator[Ready]:
    """Run a server with its data in `folder`."""
    ready_file = folder / "ready.json"
    command = [sys.executable, "-m", "gradwire_server", "serve", "--port", "0", "--data", str(folder / "data")]
    process = subprocess.Popen([*command, "--ready-file", str(ready_file)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        yield Ready(**json.loads(ready_file.read_text()))
    finally:
        process.terminate()
        process.wait(20)


class Story:
    """Four trainings; the one called `main` is steered through the API while the pictures are taken."""

    def __init__(self, ready: Ready, stack: ExitStack) -> None:
        self._stack = stack
        self._ready = ready
        headers = {"Authorization": f"Bearer {ready.operator_token}"}
        self._api = stack.enter_context(httpx.Client(base_url=ready.url, headers=headers, timeout=30.0))
        self._others()
        self.baseline = self._play(Training(name="llama-500m-uncompressed", start_step=39_000), 3900)
        self.baseline.end()
        self.main = self._play(Training(name="llama-500m", start_step=39_000), 1200)

    def _play(self, training: Training, num_steps: int) -> Replay:
        replay = self._stack.enter_context(Replay(self._ready.url, self._ready.ingest_token, training))
        replay.tell(num_steps)
        return replay

    def _others(self) -> None:
        small = Training(
            name="tabular-cpu",
            device="cpu",
            device_name="AMD EPYC 9654",
            backend="gloo",
            hosts=("trainer-a",),
            link_bytes_per_second=125e6,
            link_note="",
            gradient_bytes=30_000_000,
            total_steps=4000,
        )
        self._play(small, 900).end("failed", "RuntimeError: DataLoader worker (pid 4711) was killed")
        self._vision = self._play(
            Training(name="vit-large", transfer=0.021, data_wait=0.093, hosts=("node-07",)), 1500
        )

    def turn_on(self) -> None:
        """Turn int8 on with a reason, have it applied, and train on."""
        body = SetRequest(
            plan=PlanSpec(codec="int8"), revision=self._revision(), reason="43 % waiting, see verdict"
        )
        self._ask(routes.DIRECTIVES, body)
        self._ask(routes.BASELINE, BaselineRequest(baseline=self.baseline.run_id))
        self.main.tell(2700)

    def roll_back(self) -> None:
        """Roll back, have it applied, and train on for a little."""
        self._ask(routes.ROLLBACK, RollbackRequest())
        self.main.tell(60)

    def tick(self) -> None:
        """Let the running trainings report once more, so that nothing on a picture looks stale."""
        self.main.tell(3)
        self._vision.tell(3)

    def _revision(self) -> int:
        answer = self._api.get(routes.RUN.format(run=self.main.run_id))
        return int(answer.raise_for_status().json()["revision"])

    def _ask(self, route: str, body: object) -> None:
        self._api.post(route.format(run=self.main.run_id), content=encode(body)).raise_for_status()
        directive = self.main.poll(0.0)
        # As long as a training takes to its next step.
        time.sleep(0.4)
        if directive is not None:
            self.main.answer(directive)


class Camera:
    """Opens pages as one signed-in person with different browsers, and takes pictures of them."""

    def __init__(self, browser: Browser, ready: Ready, folder: Path, story: Story) -> None:
        self._browser, self._ready, self._folder, self._story = browser, ready, folder, story
        context = browser.new_context()
        page = context.new_page()
        page.goto(ready.login_link)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{ready.url}/")
        self._state = context.storage_state()
        context.close()

    def take(
        self,
        name: str,
        path: str,
        *,
        size: tuple[int, int] = DESKTOP,
        theme: str = "light",
        language: str = "en",
        whole: bool = False,
    ) -> None:
        """Write one picture.

        Args:
            name: Of the file, without its ending.
            path: Address of the page on the server.
            size: Of the window in CSS pixels.
            theme: "light" or "dark".
            language: "en" or "zh".
            whole: Show the page to its end with all charts, not the window alone.
        """
        self._story.tick()
        context = self._context(size, theme, language)
        page = context.new_page()
        page.goto(self._ready.url + path)
        # The first visit tells the server the reader's time zone.
        page.reload()
        page.locator("#liveness[data-state=live]").wait_for(timeout=10_000)
        if whole:
            self._draw_charts(page)
        page.screenshot(path=self._folder / f"{name}.png", full_page=whole)
        context.close()

    def _context(self, size: tuple[int, int], theme: str, language: str) -> BrowserContext:
        return self._browser.new_context(
            storage_state=self._state,
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            locale={"en": "en-GB", "zh": "zh-CN"}[language],
            timezone_id="Asia/Shanghai" if language == "zh" else "Europe/Berlin",
            device_scale_factor=2 if size == PHONE else 1.5,
        )

    def _draw_charts(self, page: Page) -> None:
        for figure in page.locator(".chart").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".main-svg").first.wait_for(timeout=CHART_SECONDS * 1000)
        page.evaluate("window.scrollTo(0, 0)")


def take_all(story: Story, camera: Camera) -> None:
    """Take every picture, moving the story on between them."""
    run = f"/runs/{story.main.run_id}"
    camera.take("run-worth-it", run)
    story.turn_on()
    for language, suffix in (("en", ""), ("zh", "-zh")):
        for theme, ending in (("light", ""), ("dark", "-dark")):
            camera.take(f"runs{suffix}{ending}", "/", size=LIST, theme=theme, language=language)
            camera.take(f"run{suffix}{ending}", run, theme=theme, language=language)
    camera.take("run-whole", run, whole=True)
    camera.take("run-phone", run, size=PHONE)
    camera.take("run-phone-zh-dark", run, size=PHONE, theme="dark", language="zh")
    camera.take("runs-phone", "/", size=PHONE)
    story.roll_back()
    camera.take("run-rolled-back", run)


def main() -> int:
    """Write all pictures."""
    parser = argparse.ArgumentParser(prog="python -m docs.screenshots", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready = stack.enter_context(served(folder))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        stack.callback(browser.close)
        story = Story(ready, stack)
        take_all(story, Camera(browser, ready, options.folder, story))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
