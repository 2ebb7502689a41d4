"""What is drawn: glyphs, phones, themes, charts, and hostile text."""

import re
from dataclasses import replace as changed
from itertools import pairwise

import pytest
from browsing import TOY, Person, somebody, training
from gradwire_protocol.records import Event, Points
from playwright.sync_api import Browser, Page, expect
from server_process import ServerProcess

from examples.replay.replay import Replay

pytestmark = pytest.mark.browser

# Draws one character with the page's own font and returns its pixels.
DRAW = """
(character) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 48;
  const pen = canvas.getContext("2d");
  pen.font = "32px " + getComputedStyle(document.body).fontFamily;
  pen.textBaseline = "top";
  pen.fillText(character, 4, 4);
  return Array.from(pen.getImageData(0, 0, 48, 48).data).filter((_, place) => place % 4 === 3).join();
}
"""

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    '<a href="javascript:alert(1)">x</a>',
    "<b>bold</b>",
)


def draw_charts(page: Page) -> None:
    """Scroll to every chart and wait until it is drawn."""
    for figure in page.locator(".chart").all():
        figure.scroll_into_view_if_needed()
        expect(figure.locator(".main-svg").first).to_be_visible()


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_chinese_page_draws_chinese_glyphs(chromium: Browser, server: ServerProcess) -> None:
    with training(server) as replay, somebody(chromium, server, locale="zh-CN") as person:
        page = person.open(f"/runs/{replay.run_id}")
        expect(page.locator(".verdict-sentence")).to_contain_text("值得做。")
        assert page.evaluate("document.documentElement.lang") == "zh-Hans"
        texts = page.locator(".verdict-sentence").inner_text() + page.locator("#rollback-line").inner_text()
        characters = sorted(set(re.findall(r"[\u4e00-\u9fff]", texts)))
        assert len(characters) > 20
        # No font has a glyph for this noncharacter: what it draws is what a missing glyph looks like.
        missing = page.evaluate(DRAW, "\ufffe")
        drawn = {character: page.evaluate(DRAW, character) for character in characters}
        assert [character for character, pixels in drawn.items() if pixels == missing or "255" not in pixels] == []
        assert len(set(drawn.values())) == len(characters)
        assert person.complaints == []


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
def test_no_page_scrolls_sideways_on_a_phone(chromium: Browser, server: ServerProcess, language: str) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "locale": language, "is_mobile": True, "has_touch": True}
    with training(server) as replay, somebody(chromium, server, **phone) as person:
        page = person.page
        assert overflow(page) == 0
        person.open(f"/runs/{replay.run_id}")
        assert overflow(page) == 0
        rollback = page.locator("#rollback").bounding_box()
        assert rollback is not None
        # On the first screen, and as wide as a thumb likes it.
        assert rollback["y"] + rollback["height"] < 740
        assert rollback["width"] > 300
        assert rollback["height"] >= 40
        draw_charts(page)
        assert overflow(page) == 0
        page.locator("#next-button").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert overflow(page) == 0
        person.open("/nowhere")
        assert overflow(page) == 0
        assert [text for text in person.complaints if "404" not in text] == []


def test_charts_are_drawn_and_follow_theme_and_data(person: Person, server: ServerProcess) -> None:
    with training(server) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        draw_charts(page)
        expect(page.locator(".chart-area.failed")).to_have_count(0)
        # Layers lie on one another only when the library's style sheet is there.
        assert page.evaluate("getComputedStyle(document.querySelector('.main-svg')).position") == "absolute"
        axis = page.locator("#chart-throughput .xtick text").last
        before = axis.get_attribute("style")
        # The button stands at the top, so the charts go out of sight: they follow when they come near again.
        with page.expect_response(
            lambda answer: "/figures/throughput" in answer.url and "theme=dark" in answer.url
        ):
            page.locator("#theme").click()
            page.locator("#chart-throughput").scroll_into_view_if_needed()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        expect(axis).not_to_have_attribute("style", before or "")
        with page.expect_response(lambda answer: "/figures/throughput" in answer.url):
            page.locator("#chart-throughput").scroll_into_view_if_needed()
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_first_screen_needs_neither_charts_nor_their_library(chromium: Browser, server: ServerProcess) -> None:
    with training(server) as replay, somebody(chromium, server) as person:
        page = person.page
        page.route("**/vendor/*.js*", lambda route: route.abort())
        person.open(f"/runs/{replay.run_id}")
        person.see("Worth it.")
        expect(page.locator("#liveness")).to_have_text("Live")
        page.locator("#chart-steps").scroll_into_view_if_needed()
        expect(page.locator("#chart-steps")).to_contain_text("The chart cannot be loaded now.")
        page.unroute("**/vendor/*.js*")
        expect(page.locator("#chart-steps .main-svg").first).to_be_visible()


def test_c64_hostile_text_is_shown_as_it_stands_on_every_page(chromium: Browser, server: ServerProcess) -> None:
    made = changed(TOY, name=HOSTILE[0], hosts=(HOSTILE[3],), device_name=HOSTILE[1], link_note=HOSTILE[2])
    # Plotly takes just these tags for markup.
    markup = HOSTILE[2] + HOSTILE[3]
    first = changed(TOY, name=markup)
    with (
        Replay(server.url, server.ingest_token, first) as baseline,
        training(server, made) as replay,
        somebody(chromium, server) as person,
    ):
        baseline.tell(900)
        for text in HOSTILE:
            replay.send(Event(at=0.0, step=5, kind="note", message=text))
            replay.send(Points(name=text, steps=(1, 2), values=(1.0, 2.0), is_evaluation=True))
        page = person.page
        expect(page.get_by_text(HOSTILE[0], exact=True).first).to_be_visible()
        person.open(f"/runs/{replay.run_id}")
        assert page.title() == f"{HOSTILE[0]} – Gradwire"
        page.locator("#baseline").select_option(label=markup)
        page.get_by_role("button", name="Choose").click()
        expect(page.get_by_text(f"Ada chose {markup} as the baseline.")).to_be_visible()
        for text in HOSTILE:
            expect(page.locator("#history").get_by_text(text).first).to_be_visible()
        draw_charts(page)
        # The baseline's name stands in the legend of the loss.
        expect(page.locator("#chart-loss .legend")).to_contain_text(markup)
        page.locator("#chart-loss .main-svg").first.hover(position={"x": 200, "y": 150})
        person.open("/runs/%3Cimg%20src=x%20onerror=alert(1)%3E")
        person.see("There is nothing here")
        assert page.locator("main img, main b, main script").count() == 0
        assert not [address for address in person.requests if address.endswith("/x") or "javascript" in address]
        assert [text for text in person.complaints if "404" not in text] == []


def test_no_element_comes_from_hostile_text(person: Person, server: ServerProcess) -> None:
    with training(server, changed(TOY, name=HOSTILE[0], device_name=HOSTILE[3], link_note=HOSTILE[2])) as replay:
        page = person.open(f"/runs/{replay.run_id}")
        draw_charts(page)
        # Fetched and put in place again by the script.
        position = page.locator(".run-facts span").nth(1)
        expect(position).not_to_have_text(position.inner_text())
        assert page.locator("#live img, #live b, #live script, #live a[href^=javascript]").count() == 0


def test_every_control_has_a_name_and_headings_descend(person: Person, server: ServerProcess) -> None:
    with training(server) as replay:
        for path in ("/", f"/runs/{replay.run_id}"):
            page = person.open(path)
            unnamed = page.evaluate(
                """() => [...document.querySelectorAll("input:not([type=hidden]), select, button, a")]
                  .filter((part) => !(part.labels?.length || part.textContent.trim() || part.ariaLabel))
                  .map((part) => part.outerHTML)"""
            )
            assert unnamed == []
            levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((part) => +part.tagName[1])")
            assert levels[0] == 1
            assert levels.count(1) == 1
            assert all(after - before <= 1 for before, after in pairwise(levels))
