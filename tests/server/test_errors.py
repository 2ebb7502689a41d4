import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from agent_stream import AgentStream, window
from gradwire_protocol import routes
from gradwire_protocol.messages import ErrorAnswer
from gradwire_server.errors import ServiceError
from server_inside import InsideServer, inside_server
from server_process import ServerProcess


class StrictErrorAnswer(ErrorAnswer, kw_only=True, forbid_unknown_fields=True):
    """The one shape of errors, with nothing missing and nothing added."""


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[InsideServer]:
    with inside_server(tmp_path) as server:
        yield server


def code(body: bytes) -> str:
    assert b'"error"' in body
    return msgspec.json.decode(body, type=StrictErrorAnswer).error.code


@pytest.mark.parametrize(
    ("method", "path", "status", "wanted"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("DELETE", routes.LIVEZ, 405, "method_not_allowed"),
        ("GET", routes.BATCHES, 404, "not_found"),
        ("GET", routes.RUNS, 401, "unauthorized"),
        ("POST", routes.ROLLBACK, 401, "unauthorized"),
        ("GET", routes.RUN_LIVE, 401, "unauthorized"),
        ("GET", "/static/nothing.css", 404, "not_found"),
        ("GET", "/static/..%2f..%2f..%2fetc%2fpasswd", 404, "not_found"),
    ],
)
def test_every_error_has_the_one_shape(
    server: ServerProcess, method: str, path: str, status: int, wanted: str
) -> None:
    answer = server.anonymous().request(method, path.format(run="x"))
    assert (answer.status_code, code(answer.content)) == (status, wanted)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (routes.AGENT_DIRECTIVE, "attempt"),
        (routes.AGENT_DIRECTIVE + "?attempt=a&after=x", "after"),
        (routes.AGENT_DIRECTIVE + "?attempt=a&wait=-1", "wait"),
        (routes.AGENT_DIRECTIVE + "?attempt=a&wait=nan", "wait"),
        (routes.AGENT_DIRECTIVE + "?attempt=a&after=99999999999999999999", "after"),
    ],
)
def test_wrong_parameter_is_named(server: ServerProcess, path: str, field: str) -> None:
    answer = server.agent().get(path.format(run="x"))
    assert (answer.status_code, code(answer.content)) == (422, "malformed")
    assert answer.json()["error"]["field"] == field


def test_locked_database_is_503_with_retry_and_loses_nothing(inside: InsideServer) -> None:
    stream = AgentStream(inside.client(inside.token("ingest")))
    stream.begin()
    reader = inside.client(inside.token("read"))
    database = inside.services.database
    database.write_sync(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout=50").close())
    other = sqlite3.connect(inside.services.settings.data / "gradwire.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = stream.post(stream.batch(window(0)))
    assert (answer.status_code, code(answer.content)) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    ready = inside.client().get(routes.READYZ)
    assert (ready.status_code, code(ready.content)) == (503, "unavailable")
    assert inside.client().get(routes.LIVEZ).status_code == 200
    assert reader.get(routes.METRICS).status_code == 200
    assert reader.get(routes.RUNS).status_code == 200
    other.execute("ROLLBACK")
    other.close()
    stream.send(window(0))
    assert inside.client().get(routes.READYZ).status_code == 200


def test_unforeseen_error_tells_nothing_of_the_inside(inside: InsideServer) -> None:
    @inside.app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("the secret inside")

    # Routes of pages come before, so the new one must be found first.
    inside.app.router.routes.insert(0, inside.app.router.routes.pop())
    answer = inside.client().get("/boom")
    assert (answer.status_code, code(answer.content)) == (500, "internal")
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers


def test_every_error_of_the_tree_has_a_code_of_its_own_status() -> None:
    def leaves(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
        for sub in kind.__subclasses__():
            yield sub
            yield from leaves(sub)

    found = {(kind.status, kind.code) for kind in leaves(ServiceError)}
    assert len(found) == len(list(leaves(ServiceError)))
    assert all(400 <= status < 600 for status, _ in found)
