"""The forms of the pages, sent as a browser without JavaScript sends them, and errors as pages."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_stream import AgentStream, window
from page_text import read, visible_text
from server_inside import InsideServer, inside_server

BROWSER = {"Accept": "text/html", "Accept-Language": "en"}
PART = {"X-Gradwire-Part": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InsideServer]:
    with inside_server(Path(tmp_path_factory.mktemp("actions"))) as made:
        yield made


@pytest.fixture(scope="module")
def browser(server: InsideServer) -> httpx.Client:
    made = server.browser("Ada")
    made.headers.update(BROWSER)
    return made


@pytest.fixture
def run(server: InsideServer) -> AgentStream:
    made = AgentStream(server.client(server.token("ingest")), total_steps=5000)
    made.begin(*(window(10 * index) for index in range(20)))
    return made


def apply(run: AgentStream, step: int) -> None:
    """Apply the open change as the training would."""
    directive = run.wait_directive(after=0)
    assert directive is not None
    run.report(run.switched(directive, step=step))


def turn_on(browser: httpx.Client, run: AgentStream, step: int = 200) -> None:
    form = {"model": "model", "revision": "0", "codec": "int8", "confirmed": "1"}
    assert browser.post(f"/runs/{run.run}/change", data=form).status_code == 303
    apply(run, step)


def text_of(browser: httpx.Client, run: AgentStream) -> str:
    return visible_text(browser.get(f"/runs/{run.run}").text)


def test_turning_on_asks_first_and_then_shows_every_state(browser: httpx.Client, run: AgentStream) -> None:
    form = {"model": "model", "revision": "0", "codec": "int8", "int8.block": "512", "onebit.block": "1024"}
    asked = browser.post(f"/runs/{run.run}/change", data={**form, "reason": "try it"})
    assert asked.status_code == 200
    assert "Turn on int8 on 2 processes?" in visible_text(asked.text)
    assert run.wait_directive(wait=0) is None
    # The page's own fields are what is sent on.
    fields = {a["name"]: a["value"] for tag, a in read(asked.text).elements if tag == "input"}
    assert fields == {
        "model": "model",
        "revision": "0",
        "codec": "int8",
        "int8.block": "512",
        "reason": "try it",
        "confirmed": "1",
    }
    answer = browser.post(f"/runs/{run.run}/change", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.run}")
    assert "Ada asked for int8 at " in text_of(browser, run)
    assert "Requested. Waiting for the training to answer." in text_of(browser, run)
    directive = run.wait_directive()
    assert directive is not None
    assert directive.plan.parameters == {"block": 512}
    assert "0 of 2 processes have confirmed." in text_of(browser, run)
    run.report(run.switched(directive, step=200))
    text = text_of(browser, run)
    assert "int8 on 2 processes since step 200" in text
    assert "int8 on all 2 processes since step 200, " in text
    assert "2 of 2" in text
    assert "Reason: try it." in text


def test_rollback_acts_at_once_and_shows_every_state(browser: httpx.Client, run: AgentStream) -> None:
    turn_on(browser, run)
    answer = browser.post(f"/runs/{run.run}/rollback", data={"model": "model"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.run}")
    assert "Rollback requested by Ada at " in text_of(browser, run)
    apply(run, 230)
    text = text_of(browser, run)
    assert "Uncompressed on all 2 processes since step 230, " in text
    assert "Uncompressed on 2 processes" in text
    assert "Add a reason" in text


def test_a_reason_can_be_added_after_a_rollback(browser: httpx.Client, run: AgentStream) -> None:
    turn_on(browser, run)
    browser.post(f"/runs/{run.run}/rollback", data={"model": "model"})
    apply(run, 230)
    form = {"model": "model", "revision": "2", "reason": "loss jumped <b>"}
    assert browser.post(f"/runs/{run.run}/reason", data=form).status_code == 303
    text = text_of(browser, run)
    assert "Reason: loss jumped <b>." in text
    assert "Add a reason" not in text


def test_going_back_by_plan_is_not_asked(browser: httpx.Client, run: AgentStream) -> None:
    turn_on(browser, run)
    form = {"model": "model", "revision": "1", "codec": "none"}
    assert browser.post(f"/runs/{run.run}/change", data=form).status_code == 303
    assert "Ada asked for uncompressed at " in text_of(browser, run)


def test_a_change_made_from_a_stale_page_names_who_was_faster(
    server: InsideServer, browser: httpx.Client, run: AgentStream
) -> None:
    turn_on(server.browser("Ben"), run)
    form = {"model": "model", "revision": "0", "codec": "bf16", "confirmed": "1"}
    answer = browser.post(f"/runs/{run.run}/change", data=form)
    assert answer.status_code == 409
    text = visible_text(answer.text)
    assert "Somebody else was faster" in text
    assert "Ben asked for int8 at " in text
    assert "int8 on 2 processes" in text_of(browser, run)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"codec": "zip", "revision": "0"}, "codec 'zip' is unknown"),
        ({"codec": "int8", "revision": "0", "int8.block": "1e9"}, "wanted: a whole number"),
        ({"codec": "int8", "revision": "0", "int8.block": "7"}, "wanted: int from 64 to 4096"),
        ({"codec": "int8"}, "revision is ''; wanted: a whole number"),
        ({"codec": "onebit", "revision": "0", "confirmed": "1"}, "onebit"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_reason(
    browser: httpx.Client, run: AgentStream, form: dict[str, str], wanted: str
) -> None:
    answer = browser.post(f"/runs/{run.run}/change", data=form)
    assert answer.status_code == 422
    assert "That was not accepted" in visible_text(answer.text)
    assert wanted in visible_text(answer.text)
    assert run.wait_directive(wait=0) is None


def test_an_ended_run_takes_no_rollback(browser: httpx.Client, run: AgentStream) -> None:
    run.end()
    assert "disabled aria-describedby" in browser.get(f"/runs/{run.run}").text
    answer = browser.post(f"/runs/{run.run}/rollback", data={})
    assert answer.status_code == 409
    assert "This run takes no changes now" in visible_text(answer.text)


def test_baseline_is_chosen_and_taken_back(server: InsideServer, browser: httpx.Client, run: AgentStream) -> None:
    other = AgentStream(run.client, run_name="the first")
    other.begin(window(0))
    form = {"baseline": other.run}
    assert browser.post(f"/runs/{run.run}/baseline", data=form).status_code == 303
    html = browser.get(f"/runs/{run.run}").text
    assert f'<option value="{other.run}" selected>the first</option>' in html
    assert "No baseline is chosen." not in visible_text(html)
    assert browser.post(f"/runs/{run.run}/baseline", data={"baseline": ""}).status_code == 303
    assert "No baseline is chosen." in text_of(browser, run)
    assert browser.post(f"/runs/{run.run}/baseline", data={"baseline": run.run}).status_code == 422


def test_our_script_gets_parts_and_no_redirects(browser: httpx.Client, run: AgentStream) -> None:
    form = {"model": "model", "revision": "0", "codec": "int8"}
    asked = browser.post(f"/runs/{run.run}/change", data=form, headers=PART)
    assert asked.status_code == 200
    assert "<html" not in asked.text
    assert 'id="question"' in asked.text
    answer = browser.post(f"/runs/{run.run}/change", data={**form, "confirmed": "1"}, headers=PART)
    assert (answer.status_code, answer.content) == (204, b"")
    stale = browser.post(f"/runs/{run.run}/change", data={**form, "confirmed": "1"}, headers=PART)
    assert stale.status_code == 409
    assert "<html" not in stale.text
    assert "Somebody else was faster" in stale.text


def test_a_form_from_somewhere_elses_page_is_refused(browser: httpx.Client, run: AgentStream) -> None:
    turn_on(browser, run)
    answer = browser.post(f"/runs/{run.run}/rollback", data={}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert run.wait_directive(after=1, wait=0) is None


def test_nobody_signed_in_is_told_how(server: InsideServer, run: AgentStream) -> None:
    stranger = server.client(**BROWSER)
    for path in ("/", f"/runs/{run.run}", f"/runs/{run.run}/live-part"):
        answer = stranger.get(path)
        assert answer.status_code == 401
        assert "gradwire-server login-link" in visible_text(answer.text)
        assert "toy" not in answer.text
    assert stranger.post(f"/runs/{run.run}/rollback", data={}, headers={"Origin": server.url}).status_code == 401


def test_a_login_link_shows_a_button_and_is_spent_by_pressing_it(server: InsideServer) -> None:
    secret = server.login_secret("Dana")
    visitor = server.client(Origin=server.url, **BROWSER)
    for _ in range(2):
        shown = visitor.get(f"/login/{secret}")
        assert shown.status_code == 200
        assert shown.headers["cache-control"] == "no-store"
        assert "Sign in to Gradwire" in visible_text(shown.text)
    assert visitor.post("/login", data={"secret": secret}).status_code == 303
    assert "Dana" in visible_text(visitor.get("/").text)
    assert visitor.post("/login", data={"secret": secret}).status_code == 401
    assert visitor.post("/logout").status_code == 303
    assert visitor.get("/").status_code == 401


def test_errors_are_pages_for_people_and_json_for_programs(browser: httpx.Client) -> None:
    for path in ("/nowhere", "/runs/none", "/runs/<script>alert(1)</script>"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "There is nothing here" in visible_text(answer.text)
        assert "<script>alert" not in answer.text
    assert browser.get("/api/v1/nowhere").json()["error"]["code"] == "not_found"
    assert browser.get("/nowhere", headers={"Accept": "*/*"}).json()["error"]["code"] == "not_found"
    chinese = browser.get("/nowhere", headers={"Accept-Language": "zh"})
    assert "这里什么也没有" in visible_text(chinese.text)


def test_an_unforeseen_error_is_a_page_without_details(server: InsideServer, browser: httpx.Client) -> None:
    def fail() -> None:
        raise RuntimeError("secret details")

    server.app.add_api_route("/broken", fail)
    answer = browser.get("/broken")
    assert answer.status_code == 500
    assert "Something went wrong here" in visible_text(answer.text)
    assert "secret" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_form_that_is_too_large_is_refused(browser: httpx.Client, run: AgentStream) -> None:
    answer = browser.post(f"/runs/{run.run}/reason", data={"revision": "1", "reason": "x" * 40_000})
    assert answer.status_code == 413


def test_sparse_scheme_offers_its_shares_and_takes_one(browser: httpx.Client, run: AgentStream) -> None:
    page = browser.get(f"/runs/{run.run}").text
    assert "topk (sparse)" in visible_text(page)
    elements = read(page).elements
    (field,) = (a for tag, a in elements if tag == "input" and a.get("name") == "topk.k")
    assert (field["value"], field["min"], field["max"]) == ("13", "1", "128")
    assert field["list"] in [a.get("id") for tag, a in elements if tag == "datalist"]
    options = [
        (a["value"], a["label"].replace("\u202f", " ")) for tag, a in elements if tag == "option" and "label" in a
    ]
    assert options == [("3", "1 %"), ("13", "5 %"), ("64", "25 %")]
    form = {"model": "model", "revision": "0", "codec": "topk", "topk.k": "64", "confirmed": "1"}
    assert browser.post(f"/runs/{run.run}/change", data=form).status_code == 303
    directive = run.wait_directive()
    assert directive is not None
    assert directive.plan.parameters == {"k": 64}
    page = browser.get(f"/runs/{run.run}", headers={"Accept-Language": "zh"}).text
    assert "topk（稀疏）" in visible_text(page)
    assert "k 越大，压缩越少" in visible_text(page)
