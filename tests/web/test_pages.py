"""The pages of a real server, as a browser without JavaScript has them."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_stream import AgentStream, losses, window
from gradwire_protocol.records import Event, HostWindow
from gradwire_server.pages import routes
from page_text import read, visible_text
from server_inside import InsideServer, inside_server

BROWSER = {"Accept": "text/html", "Accept-Language": "en"}
CHINESE = {"Accept": "text/html", "Accept-Language": "zh-CN,zh;q=0.9"}

# Words of the code that mean nothing to a reader; the pages have other words for them.
CODE_WORDS = (
    "attempts?|windows?|directives?|revisions?|verdicts?|exposed|overlapped|stragglers?|probes?|codecs?|plans?|ranks?|"
    "fidelity|drift|residuals?|logical|wire|guard|dry-run|realised|forecast|potential|advisor|trial|spool|lost|pulse|"
    "lane|payload|kernel"
)

# Order of the first screen, by what marks each part in the page.
FIRST_SCREEN = (
    "<h1>",
    'id="rollback"',
    'class="verdict-sentence"',
    "Finish date",
    "Saved so far",
    "Quality",
    'class="ring"',
    "Compute",
    "Compress",
    ">Send",
    "Decompress",
    ">Update",
    "Communication/compute ratio",
    "Effective throughput",
    "Bandwidth use",
    "Waiting for transfer, % of a step",
    "All communication, % of a step",
    "Next step",
    "Last change",
    'class="trust"',
    "For the engineer",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InsideServer]:
    with inside_server(Path(tmp_path_factory.mktemp("pages"))) as made:
        yield made


@pytest.fixture(scope="module")
def browser(server: InsideServer) -> httpx.Client:
    return server.browser("Ada")


def stream(server: InsideServer, *, num_windows: int = 20, **facts: object) -> AgentStream:
    """Return a run with measured uncompressed steps."""
    made = AgentStream(server.client(server.token("ingest")), **facts)
    made.begin(*(window(10 * index) for index in range(num_windows)))
    made.send(losses(0, [3.0 - 0.01 * index for index in range(50)]))
    return made


@pytest.fixture(scope="module")
def run(server: InsideServer) -> AgentStream:
    return stream(server, total_steps=5000)


def page(browser: httpx.Client, path: str, headers: dict[str, str] = BROWSER) -> str:
    answer = browser.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def test_first_screen_is_complete_and_in_order(browser: httpx.Client, run: AgentStream) -> None:
    html = page(browser, f"/runs/{run.run}")
    places = [html.index(mark) for mark in FIRST_SCREEN]
    assert places == sorted(places)
    text = visible_text(html)
    assert "Worth it.\n45 % of every step is spent waiting for gradients to travel" in text
    assert "step 199 of 5 000\nUncompressed on 2 processes" in text
    assert "100 ms\nper step" in text
    assert "Nobody has changed anything so far." in text
    assert "1 of 1 node reporting" in text


def test_first_screen_says_the_same_in_chinese(browser: httpx.Client, run: AgentStream) -> None:
    html = page(browser, f"/runs/{run.run}", CHINESE)
    assert '<html lang="zh-Hans"' in html
    text = visible_text(html)
    assert "值得做。\n每一步有 45% 的时间在等待梯度传输" in text
    assert "第 199 步，共 5000 步\n2 个进程均为无压缩模式" in text
    assert "Worth it" not in text


@pytest.mark.parametrize("headers", [BROWSER, CHINESE], ids=["en", "zh"])
def test_no_code_word_is_visible_outside_the_engineers_section(
    server: InsideServer, browser: httpx.Client, run: AgentStream, headers: dict[str, str]
) -> None:
    compressed = stream(server, run_name="second")
    body = {"plan": {"codec": "int8"}, "revision": 0}
    operator = server.client(server.token("operator"))
    assert operator.post(f"/api/v1/runs/{compressed.run}/directives", json=body).status_code == 202
    directive = compressed.wait_directive()
    assert directive is not None
    compressed.report(compressed.switched(directive, step=200))
    compressed.send(*(window(210 + 10 * index, codec="int8", epoch=1) for index in range(10)))
    for path in ("/", f"/runs/{run.run}", f"/runs/{compressed.run}", "/login/secret"):
        text = visible_text(page(browser, path, headers), skip="engineer")
        assert re.findall(rf"\b(?:{CODE_WORDS})\b", text, re.IGNORECASE) == [], path


def test_a_code_word_outside_the_engineers_section_would_be_found() -> None:
    html = '<p title="drift">Quality</p><div class="engineer">rank 3</div><p>the <b>codec</b></p>'
    text = visible_text(html, skip="engineer")
    assert re.findall(rf"\b(?:{CODE_WORDS})\b", text) == ["codec"]


@pytest.mark.parametrize("path", ["/", "/runs/{run}", "/login/secret", "/nowhere"])
def test_no_page_has_inline_styles_or_scripts_or_asks_anybody_else(
    browser: httpx.Client, run: AgentStream, path: str
) -> None:
    html = browser.get(path.format(run=run.run), headers=BROWSER).text
    elements = read(html).elements
    assert elements
    for tag, attributes in elements:
        assert "style" not in attributes, (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert tag != "style"
        assert tag != "script" or attributes["src"].startswith("/static/")
        for name in ("src", "href", "action"):
            assert not re.match(r"\w+:|//", attributes.get(name, "")), (tag, attributes)


def test_every_static_file_of_a_page_is_there_and_kept(browser: httpx.Client, run: AgentStream) -> None:
    html = page(browser, f"/runs/{run.run}")
    addresses = set(re.findall(r'"(/static/[^"#]+)', html))
    assert len(addresses) >= 6
    for address in addresses:
        answer = browser.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
    plain = browser.get("/static/app.css")
    assert plain.headers["cache-control"] == "no-cache"
    assert browser.get("/static/../pyproject.toml").status_code == 404
    assert browser.get("/static/%2e%2e/__init__.py").status_code == 404


def test_pages_are_not_kept_and_depend_on_reader(browser: httpx.Client, run: AgentStream) -> None:
    headers = browser.get(f"/runs/{run.run}", headers=BROWSER).headers
    assert headers["cache-control"] == "no-store"
    assert headers["vary"] == "Accept-Language, Cookie"


def test_language_link_is_remembered(server: InsideServer) -> None:
    browser = server.browser("Ben")
    assert '<html lang="zh-Hans"' in browser.get("/?language=zh", headers=BROWSER).text
    assert '<html lang="zh-Hans"' in browser.get("/", headers=BROWSER).text
    assert '<html lang="en"' in browser.get("/?language=en", headers=BROWSER).text
    assert '<html lang="en"' in browser.get("/", headers=CHINESE).text
    assert '<html lang="en"' in browser.get("/?language=<b>", headers=CHINESE).text


def test_times_are_in_the_readers_zone_once_it_is_known(server: InsideServer, run: AgentStream) -> None:
    browser = server.browser("Cem")
    assert " UTC" in page(browser, f"/runs/{run.run}")
    browser.cookies.set("gradwire_zone", "Asia/Shanghai", domain="127.0.0.1")
    html = page(browser, f"/runs/{run.run}")
    assert 'data-zone="Asia/Shanghai"' in html
    assert " UTC" not in visible_text(html)


def test_empty_list_shows_how_to_begin(tmp_path: Path) -> None:
    with inside_server(tmp_path) as server:
        text = visible_text(page(server.browser("Ada"), "/"))
    assert "gradwire.attach" in text
    assert "gradwire-server token create --kind ingest" in text


def test_list_names_every_run_with_its_answer(browser: httpx.Client, run: AgentStream) -> None:
    html = page(browser, "/")
    assert f'<a href="/runs/{run.run}">toy</a>' in html
    assert "Worth it" in visible_text(html)
    assert re.search(r'<polyline points="[\d., ]+">', html)


def test_list_leads_to_older_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "NUM_RUNS", 2)
    with inside_server(tmp_path) as server:
        for name in ("first", "second", "third"):
            stream(server, num_windows=1, run_name=name)
        browser = server.browser("Ada")
        newest = page(browser, "/")
        link = re.search(r'href="(\?before=[^"]+)">Older runs', newest)
        assert link is not None
        oldest = page(browser, f"/{link[1]}")
    assert ["third" in newest, "second" in newest, ">first<" in newest] == [True, True, False]
    assert [">third<" in oldest, ">first<" in oldest, "Older runs" in oldest] == [False, True, False]


def test_live_part_is_the_changing_part_of_the_page(browser: httpx.Client, run: AgentStream) -> None:
    html = page(browser, f"/runs/{run.run}")
    part = page(browser, f"/runs/{run.run}/live-part")
    live = [attributes["id"] for _, attributes in read(part).elements if "data-live" in attributes]
    assert live == [
        attributes["id"] for tag, attributes in read(html).elements if "data-live" in attributes and tag != "span"
    ]
    assert "<html" not in part
    assert page(browser, "/live-part").count("data-live") == 1


def test_one_of_several_models_is_shown_by_name(server: InsideServer, browser: httpx.Client) -> None:
    first = AgentStream(server.client(server.token("ingest")), model="actor")
    first.begin(window(0))
    second = AgentStream(first.client, run=first.run, attempt=first.attempt, model="critic")
    second.begin(window(0))
    assert 'name="model" value="actor"' in page(browser, f"/runs/{first.run}")
    critic = page(browser, f"/runs/{first.run}?model=critic")
    assert 'name="model" value="critic"' in critic
    assert 'href="?model=critic&amp;language=zh"' in critic
    assert browser.get(f"/runs/{first.run}?model=third", headers=BROWSER).status_code == 404


def test_ended_run_speaks_of_its_nodes_as_last_heard_of(server: InsideServer, browser: httpx.Client) -> None:
    made = stream(server, run_name="over")
    made.send(HostWindow(at=time.time(), seconds=5.0, num_cores=8, cpu_ratio=0.5))
    made.end(status="finished")
    text = visible_text(page(browser, f"/runs/{made.run}"))
    assert "Nodes, when last heard of" in text
    assert "last seconds" not in text


def test_event_whose_data_fit_no_sentence_leaves_the_page_whole(
    server: InsideServer, browser: httpx.Client
) -> None:
    made = stream(server, run_name="odd")
    values: tuple[int | str | float, ...] = (3, "", "1,x", 1e308)
    made.send(
        *(
            Event(at=time.time(), step=9, kind="loss_nonfinite", message=f"as sent {number}", data={"ranks": ranks})
            for number, ranks in enumerate(values)
        )
    )
    for headers in (BROWSER, CHINESE):
        text = visible_text(page(browser, f"/runs/{made.run}", headers))
        assert all(f"as sent {number}" in text for number in range(len(values)))


def test_text_from_outside_is_shown_as_it_stands(server: InsideServer, browser: httpx.Client) -> None:
    bad = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<b>bold</b>{{ 7*7 }}{x}"]
    bad.append('<a href="javascript:alert(1)">x</a>')
    made = stream(server, run_name=bad[0], optimizer=bad[1], device_name=bad[3], notes=(bad[2],))
    made.send(Event(at=0.0, step=1, kind="note", message=bad[1], level="warning"))
    made.end(status="failed", exception=bad[3])
    for path in ("/", f"/runs/{made.run}", f"/runs/{made.run}/live-part"):
        html = page(browser, path)
        tags = [tag for tag, _ in read(html).elements]
        assert "img" not in tags
        assert "b" not in tags
        assert bad[0] in visible_text(html)
        assert "alert(1)</script>" not in html
    text = visible_text(page(browser, f"/runs/{made.run}"))
    assert all(" ".join(shown.split()) in text for shown in bad)
