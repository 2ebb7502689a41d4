import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from gradwire_protocol import routes
from gradwire_server.access.headers import CONTENT_SECURITY_POLICY
from gradwire_server.access.tokens import CACHE_SECONDS, LOGIN_SECONDS, SESSION_SECONDS
from server_inside import InsideServer, inside_server
from stored import rows


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InsideServer]:
    with inside_server(tmp_path) as server:
        yield server


def code(answer: httpx.Response) -> object:
    return answer.json()["error"]["code"]


def log_in(server: InsideServer, secret: str, **headers: str) -> httpx.Response:
    return server.client(**{"Origin": server.url, **headers}).post("/login", data={"secret": secret})


def test_login_link_is_not_spent_by_looking_and_works_once(server: InsideServer) -> None:
    secret = server.login_secret()
    for _ in range(3):
        page = server.client().get(f"/login/{secret}")
        assert page.status_code == 200
        assert secret in page.text
        assert page.headers["cache-control"] == "no-store"
    assert log_in(server, secret).status_code == 303
    again = log_in(server, secret)
    assert (again.status_code, code(again)) == (401, "unauthorized")
    assert "set-cookie" not in again.headers


def test_login_link_expires(server: InsideServer) -> None:
    secret = server.login_secret()
    server.advance(LOGIN_SECONDS + 1)
    assert log_in(server, secret).status_code == 401


def test_login_link_is_no_token_and_no_session(server: InsideServer) -> None:
    secret = server.login_secret()
    assert server.client(secret).get(routes.LIVE).status_code == 401
    name = f"gradwire_session_{urlsplit(server.url).port}"
    assert server.client(Cookie=f"{name}={secret}").get(routes.LIVE).status_code == 401


def test_session_cookie_is_kept_from_scripts_and_other_sites(server: InsideServer) -> None:
    cookie = log_in(server, server.login_secret()).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie


def test_session_cookie_is_secure_behind_tls(tmp_path: Path) -> None:
    with inside_server(tmp_path, is_behind_proxy=True) as server:
        # uvicorn trusts the proxy's headers from this machine; the server command sets that for any proxy.
        cookie = log_in(server, server.login_secret(), **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert "secure" in cookie.lower()


def test_session_carries_its_owners_name_and_ends(server: InsideServer) -> None:
    browser = server.browser("bob")
    assert browser.get(routes.RUNS).status_code == 200
    assert browser.post("/logout").status_code == 303
    assert browser.get(routes.RUNS).status_code == 401
    (row,) = rows(server.services.settings.data / "gradwire.db", "SELECT * FROM audit WHERE action = 'login'")
    assert row["actor"] == "bob"


def test_stolen_cookie_is_worthless_after_log_out(server: InsideServer) -> None:
    browser = server.browser()
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    thief = server.client(Cookie=cookie)
    assert thief.get(routes.RUNS).status_code == 200
    browser.post("/logout")
    assert thief.get(routes.RUNS).status_code == 401


def test_session_expires(server: InsideServer) -> None:
    browser = server.browser()
    server.advance(SESSION_SECONDS - 60)
    assert browser.get(routes.RUNS).status_code == 200
    server.advance(61)
    assert browser.get(routes.RUNS).status_code == 401


@pytest.mark.parametrize(
    ("kind", "status", "change_status"), [("operator", 200, 404), ("read", 200, 403), ("ingest", 403, 403)]
)
def test_tokens_open_what_their_kind_says(server: InsideServer, kind: str, status: int, change_status: int) -> None:
    client = server.client(server.token(kind))  # type: ignore[arg-type]
    assert client.get(routes.RUNS).status_code == status
    assert client.post(routes.ROLLBACK.format(run="none"), content=b"{}").status_code == change_status


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer nonsense", "nonsense", "Bearer \xfc"])
def test_wrong_authorization_is_unauthorized(server: InsideServer, header: str) -> None:
    client = server.client()
    answer = client.get(routes.RUNS, headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, code(answer)) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_session_secret_is_no_bearer_token(server: InsideServer) -> None:
    (secret,) = server.browser().cookies.values()
    assert server.client(secret).get(routes.RUNS).status_code == 401


def test_cookie_does_not_help_a_wrong_token(server: InsideServer) -> None:
    browser = server.browser()
    assert browser.get(routes.RUNS, headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://[", "", None])
def test_change_by_cookie_from_elsewhere_is_forbidden(server: InsideServer, origin: str | None) -> None:
    browser = server.browser()
    path = routes.ROLLBACK.format(run="none")
    assert browser.post(path, content=b"{}").status_code == 404
    if origin is None:
        del browser.headers["origin"]
    else:
        browser.headers["origin"] = origin
    answer = browser.post(path, content=b"{}")
    assert (answer.status_code, code(answer)) == (403, "forbidden")


def test_login_from_elsewhere_is_forbidden_and_does_not_spend_the_link(server: InsideServer) -> None:
    secret = server.login_secret()
    assert log_in(server, secret, Origin="http://evil.example").status_code == 403
    assert log_in(server, secret, Host="evil.example", Origin="http://evil.example").status_code == 403
    assert log_in(server, secret).status_code == 303


def test_reading_by_cookie_under_a_name_that_is_not_ours_is_forbidden(server: InsideServer) -> None:
    """A name that somebody else's name server points at this machine is the same origin for that page."""
    browser = server.browser()
    del browser.headers["origin"]
    answer = browser.get(routes.RUNS, headers={"Host": "rebound.example:8420"})
    assert (answer.status_code, code(answer)) == (403, "forbidden")
    assert "--allowed-host rebound.example" in answer.json()["error"]["message"]
    for host in ("localhost:1", "127.0.0.1", "[::1]:8420", "192.168.7.7:80"):
        assert browser.get(routes.RUNS, headers={"Host": host}).status_code == 200


def test_allowed_host_is_served(tmp_path: Path) -> None:
    with inside_server(tmp_path, allowed_hosts=("Gradwire.example",)) as server:
        browser = server.browser()
        del browser.headers["origin"]
        assert browser.get(routes.RUNS, headers={"Host": "gradwire.example"}).status_code == 200


def test_token_does_not_need_a_known_host(server: InsideServer) -> None:
    answer = server.client(server.token("read")).get(routes.RUNS, headers={"Host": "server:8420"})
    assert answer.status_code == 200


def test_only_hashes_are_stored(server: InsideServer) -> None:
    secrets = [server.token("ingest"), server.token("operator"), server.login_secret()]
    secrets += list(server.browser().cookies.values())
    server.services.database.write_sync(lambda connection: None)
    content = b"".join(path.read_bytes() for path in server.services.settings.data.iterdir())
    assert not [secret for secret in secrets if secret.encode() in content]
    stored = rows(server.services.settings.data / "gradwire.db", "SELECT hash FROM tokens")
    assert all(re.fullmatch("[0-9a-f]{64}", row["hash"]) for row in stored)


def test_token_made_elsewhere_works_at_once_and_a_known_one_while_it_is_cached(server: InsideServer) -> None:
    secret = server.token("read")
    client = server.client(secret)
    assert client.get(routes.RUNS).status_code == 200
    server.services.database.write_sync(lambda connection: connection.exec_driver_sql("DELETE FROM tokens"))
    assert client.get(routes.RUNS).status_code == 200
    server.advance(CACHE_SECONDS + 1)
    assert client.get(routes.RUNS).status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/nothing", "/", "/login/x", routes.RUNS, routes.BATCHES])
def test_guarding_headers_are_on_every_answer(server: InsideServer, path: str) -> None:
    headers = server.client().get(path).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_policy_allows_nothing_inline_and_nothing_from_outside() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; ")
