"""Live is said only when it is; what a person has typed survives every refresh."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browsing import Person, somebody, training
from playwright.sync_api import Browser, expect
from server_process import ServerProcess

pytestmark = pytest.mark.browser


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of this test's own, to be killed."""
    with ServerProcess(tmp_path) as process:
        yield process


def test_a_dead_server_is_told_and_its_return_too(chromium: Browser, fragile: ServerProcess) -> None:
    with somebody(chromium, fragile) as person:
        page, liveness = person.page, person.page.locator("#liveness")
        expect(liveness).to_have_text("Live")
        fragile.kill()
        expect(liveness).to_have_text(re.compile(r"^Disconnected since \d\d:\d\d:\d\d$"))
        fragile.start()
        expect(liveness).to_have_text("Live")
        assert page.url == f"{fragile.url}/"


def test_a_change_that_cannot_be_sent_says_how_to_roll_back_without_the_server(
    chromium: Browser, fragile: ServerProcess
) -> None:
    with training(fragile) as replay, somebody(chromium, fragile) as person:
        page = person.open(f"/runs/{replay.run_id}")
        page.route("**/rollback", lambda route: route.abort())
        page.locator("#rollback").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("The server cannot be reached")
        expect(dialog).to_contain_text("gradwire rollback --local")
        dialog.get_by_role("link", name="Close").click()
        expect(dialog).to_be_hidden()
        assert page.url.endswith(replay.run_id)


def test_polling_takes_over_where_streams_are_refused(chromium: Browser, server: ServerProcess) -> None:
    with training(server) as replay, somebody(chromium, server) as person:
        person.page.route("**/live", lambda route: route.abort())
        page = person.open(f"/runs/{replay.run_id}")
        expect(page.locator("#liveness")).to_have_text(re.compile(r"^As of \d\d:\d\d:\d\d$"))
        position = page.locator(".run-facts span").nth(1)
        expect(position).not_to_have_text(position.inner_text())


def test_what_is_typed_and_opened_survives_refreshes(person: Person, server: ServerProcess) -> None:
    with training(server) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        page.locator("#codec-bf16").check()
        page.locator("#reason").fill("half a sentence")
        position = page.locator(".run-facts span").nth(1)
        for _ in range(2):
            expect(position).not_to_have_text(position.inner_text())
        expect(page.locator("#reason")).to_have_value("half a sentence")
        expect(page.locator("#reason")).to_be_focused()
        expect(page.locator("#codec-bf16")).to_be_checked()


def test_at_most_one_refresh_a_second(person: Person, server: ServerProcess) -> None:
    with training(server) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        expect(page.locator("#liveness")).to_have_text("Live")
        # News comes much faster than that.
        for _ in range(30):
            replay.tell(3)
        starts = page.evaluate(
            """() => new Promise((resolve) => {
              const starts = [];
              new PerformanceObserver((list) => {
                const parts = list.getEntries().filter((entry) => entry.name.endsWith("/live-part"));
                starts.push(...parts.map((entry) => entry.startTime));
                if (starts.length >= 4) {
                  resolve(starts);
                }
              }).observe({ type: "resource" });
            })"""
        )
        assert all(after - before > 990 for before, after in pairwise(starts))


def test_the_readers_zone_is_used_from_the_first_refresh_on(chromium: Browser, server: ServerProcess) -> None:
    with somebody(chromium, server, timezone_id="Asia/Shanghai") as person, training(server) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        expect(page.locator("html")).to_have_attribute("data-zone", "Asia/Shanghai")
        page.locator("#next-button").click()
        page.get_by_role("dialog").get_by_role("button", name="Turn on").click()
        expect(page.locator(".last")).to_have_text(re.compile(r"Ada asked for int8 at \d\d:\d\d:\d\d\. "))
