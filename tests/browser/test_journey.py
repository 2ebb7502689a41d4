"""The first minute of an operator, in a real browser against a real server and a training that answers."""

import re

import pytest
from browsing import TOY, Person, somebody, training
from playwright.sync_api import Browser, expect
from server_process import ServerProcess

from examples.replay.replay import Replay

pytestmark = pytest.mark.browser


def test_log_in_see_a_live_run_change_the_method_and_roll_back(person: Person, server: ServerProcess) -> None:
    page = person.page
    with training(server) as replay:
        page.get_by_role("link", name="toy").first.wait_for()
        person.open(f"/runs/{replay.run_id}")
        person.see("Worth it.")
        expect(page.locator("#liveness")).to_have_text("Live")
        position = page.locator(".run-facts span").nth(1)
        before = position.inner_text()
        expect(position).not_to_have_text(before)

        page.locator("#codec-int8").check()
        page.get_by_role("button", name="Apply").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Turn on int8 on 2 processes?")
        dialog.get_by_role("button", name="Turn on").click()
        expect(page.locator(".run-facts")).to_contain_text(re.compile("int8 on 2 processes since step"))
        expect(dialog).to_be_hidden()
        expect(page.locator(".history tbody tr").first).to_contain_text("2 of 2")

        page.get_by_role("button", name="Roll back to uncompressed").first.click()
        line = page.locator("#rollback-line")
        expect(line).to_contain_text(re.compile(r"Uncompressed on all 2 processes since step \d"))
        assert replay.plan.codec == "none"
        expect(page.locator(".run-facts")).to_contain_text("Uncompressed on 2 processes")

        page.get_by_text("Add a reason").click()
        page.get_by_label("Reason").first.fill("drill")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".last")).to_contain_text("Reason: drill.")


def test_rollback_shows_each_state_as_it_comes(person: Person, server: ServerProcess) -> None:
    """A training that is asked by hand shows requested and delivered before applied."""

    with Replay(server.url, server.ingest_token, TOY) as replay:
        replay.tell(600)
        person.open(f"/runs/{replay.run_id}")
        page, line = person.page, person.page.locator("#rollback-line")
        page.locator("#next-button").click()
        page.get_by_role("dialog").get_by_role("button", name="Turn on").click()
        expect(page.locator(".last")).to_contain_text("Requested. Waiting for the training to answer.")
        first = replay.poll(5.0)
        assert first is not None
        expect(page.locator(".last")).to_contain_text("0 of 2 processes have confirmed.")
        replay.answer(first)
        expect(page.locator(".run-facts")).to_contain_text("int8 on 2 processes since step")
        page.locator("#rollback").click()
        expect(line).to_contain_text("Rollback requested by Ada at ")
        second = replay.poll(5.0)
        assert second is not None
        expect(line).to_have_text("0 of 2 processes have confirmed.")
        replay.refuse(second, rank=1, reason="busy with a checkpoint")
        expect(line).to_have_text(
            "Not applied. process 1 on node-00 refused: busy with a checkpoint. Compression is still on everywhere."
        )


def test_everything_works_without_javascript(chromium: Browser, server: ServerProcess) -> None:
    with training(server) as replay, somebody(chromium, server, java_script_enabled=False) as person:
        page = person.open(f"/runs/{replay.run_id}")
        person.see("Worth it.")
        page.locator("#codec-int8").check()
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("h1.question")).to_contain_text("Turn on int8 on 2 processes?")
        page.get_by_role("button", name="Turn on").click()
        page.wait_for_url(f"**/runs/{replay.run_id}")
        page.locator("#rollback").click()
        page.wait_for_url(f"**/runs/{replay.run_id}")
        for _ in range(80):
            if "Uncompressed on all 2 processes since step" in page.locator("#rollback-line").inner_text():
                break
            page.wait_for_timeout(250)
            page.reload()
        expect(page.locator("#rollback-line")).to_contain_text("Uncompressed on all 2 processes since step")
        assert person.complaints == []


def test_the_slower_of_two_persons_is_told_who_was_faster(chromium: Browser, server: ServerProcess) -> None:
    with (
        training(server) as replay,
        somebody(chromium, server) as one,
        somebody(chromium, server) as other,
    ):
        for person in (one, other):
            person.open(f"/runs/{replay.run_id}")
            person.page.locator("#next-button").click()
            expect(person.page.get_by_role("dialog")).to_be_visible()
        one.page.get_by_role("dialog").get_by_role("button", name="Turn on").click()
        expect(one.page.locator(".run-facts")).to_contain_text("int8 on 2 processes")
        other.page.get_by_role("dialog").get_by_role("button", name="Turn on").click()
        expect(other.page.get_by_role("dialog")).to_contain_text("Somebody else was faster")
        expect(other.page.get_by_role("dialog")).to_contain_text("Ada asked for int8")
        assert one.complaints == []
        # The browser itself logs the refusal's status.
        assert [text for text in other.complaints if "409" not in text] == []


def test_keyboard_alone_turns_on_and_rolls_back(person: Person, server: ServerProcess) -> None:
    with training(server) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.locator("#next-button").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Turn on")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.locator("#next-button")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("button", name="Turn on")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".run-facts")).to_contain_text("int8 on 2 processes since step")
        page.locator("#rollback").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#rollback-line")).to_contain_text("Uncompressed on all 2 processes since step")
        # The page was made anew around it several times.
        expect(page.locator("#rollback")).to_be_focused()
