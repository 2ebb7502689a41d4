import contextlib
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_stream import AgentStream, window
from gradwire_protocol import routes
from gradwire_server.cli import main
from gradwire_server.config import Settings
from gradwire_server.errors import ConfigError
from server_process import ServerProcess
from stored import count, rows


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may stop."""
    with ServerProcess(tmp_path) as process:
        yield process


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "gradwire_server", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gradwire.example"])
def test_open_door_needs_a_decision(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="--plain-http"):
        Settings(data=tmp_path, host=host).check()
    Settings(data=tmp_path, host=host, is_plain_http=True).check()
    Settings(data=tmp_path, host=host, is_behind_proxy=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_is_served_as_it_is(tmp_path: Path, host: str) -> None:
    Settings(data=tmp_path, host=host).check()


def test_half_a_tls_pair_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both"):
        Settings(data=tmp_path, tls_cert=tmp_path / "cert.pem").check()
    with pytest.raises(ConfigError, match="not a file"):
        Settings(data=tmp_path, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem").check()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8420"), ("::1", "http://[::1]:8420"), ("0.0.0.0", "http://127.0.0.1:8420")],
)
def test_printed_address_can_be_opened(tmp_path: Path, host: str, url: str) -> None:
    assert Settings(data=tmp_path, host=host).base_url == url


def test_refusal_is_one_line_and_a_status(tmp_path: Path) -> None:
    done = command("serve", "--data", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert re.fullmatch(r"gradwire-server: 0\.0\.0\.0 is reachable.*\n", done.stderr)
    assert not (tmp_path / "data").exists()


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command("serve", "--data", str(tmp_path), "--port", port)
    assert done.returncode == 2
    assert f"port {port}: Address already in use" in done.stderr


def test_second_server_on_the_same_data_is_refused(own: ServerProcess) -> None:
    done = command("serve", "--data", str(own.data), "--port", "0")
    assert done.returncode == 2
    assert f"already served by process {own.pid}" in done.stderr


def test_ready_file_is_for_its_owner_only(own: ServerProcess) -> None:
    path = own.data.parent / "ready.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ready = json.loads(path.read_text())
    assert set(ready) == {"url", "login_link", "ingest_token", "operator_token"}
    assert own.operator().get(routes.RUNS).status_code == 200


def test_data_is_for_its_owner_only(own: ServerProcess) -> None:
    assert stat.S_IMODE(own.data.stat().st_mode) == 0o700


def test_log_has_no_login_link(own: ServerProcess) -> None:
    own.anonymous().get(own.login_link)
    own.browser()
    assert "/login/" not in own.log_path.read_text()
    assert "gradwire-server login-link" in own.log_path.read_text()


def on_terminal(data: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a server whose output is a terminal; return it with the terminal's other end."""
    ours, theirs = pty.openpty()
    whole = [sys.executable, "-m", "gradwire_server", "serve", "--data", str(data), "--port", "0"]
    process = subprocess.Popen(whole, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    return process, ours


def read_until(terminal: int, pattern: str) -> "re.Match[str]":
    text, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        text += os.read(terminal, 4096).decode()
        if found := re.search(pattern, text):
            return found
    raise AssertionError(text)


def test_terminal_shows_a_link_until_somebody_is_logged_in(tmp_path: Path) -> None:
    for is_first in (True, False):
        process, terminal = on_terminal(tmp_path)
        try:
            if is_first:
                url, secret = read_until(terminal, r"(http://\S+)/login/(\S+)\r\n(?s:.*)token create").groups()
                form = {"secret": secret}
                answer = httpx.post(f"{url}/login", data=form, headers={"Origin": url}, trust_env=False)
                assert answer.status_code == 303
            else:
                read_until(terminal, r"Gradwire is at http://\S+\r\n")
        finally:
            process.terminate()
            rest = b""
            with contextlib.suppress(OSError):
                while part := os.read(terminal, 4096):
                    rest += part
            process.wait(20)
            os.close(terminal)
        assert b"/login/" not in rest


def test_commands_make_links_and_tokens_beside_a_running_server(own: ServerProcess) -> None:
    port = own.url.rpartition(":")[2]
    link = command("login-link", "--data", str(own.data), "--port", port, "--name", "bob").stdout.strip()
    assert link.startswith(f"{own.url}/login/")
    own.login_link = link
    assert own.browser().get(routes.RUNS).status_code == 200
    token = command(
        "token", "create", "--data", str(own.data), "--kind", "read", "--name", "grafana"
    ).stdout.strip()
    answer = own.anonymous().get(routes.RUNS, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    (row,) = rows(own.database_path, "SELECT * FROM audit WHERE after LIKE '%grafana%'")
    assert (row["actor"], row["action"]) == ("console", "token_created")


def test_migrate_makes_the_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--data", str(tmp_path)]) == 0
    assert "revision" in capsys.readouterr().out
    assert (tmp_path / "gradwire.db").exists()


def test_newer_database_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--data", str(tmp_path)]) == 0
    database = tmp_path / "gradwire.db"
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    assert main(["serve", "--data", str(tmp_path), "--port", "0"]) == 2
    assert "9999" in capsys.readouterr().err


def test_stop_with_open_streams_is_quick_and_clean(own: ServerProcess) -> None:
    stream = AgentStream(own.agent())
    stream.begin(window(0))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            path = routes.RUN_LIVE.format(run=stream.run)
            answer = stack.enter_context(own.operator().stream("GET", path))
            next(answer.iter_lines())
        parameters = {"attempt": stream.attempt, "wait": 25}
        poll = stack.enter_context(httpx.Client(base_url=own.url, trust_env=False, timeout=30))
        poll.headers["Authorization"] = f"Bearer {own.ingest_token}"
        answers: list[httpx.Response] = []
        path = routes.AGENT_DIRECTIVE.format(run=stream.run)
        waiting = threading.Thread(target=lambda: answers.append(poll.get(path, params=parameters)))
        waiting.start()
        time.sleep(0.5)
        began = time.monotonic()
        status = own.terminate()
        seconds = time.monotonic() - began
        waiting.join(30)
    assert status in (0, -signal.SIGTERM)
    # The promise itself: an operator who stops the server is not kept waiting by open pages.
    assert seconds < 5
    assert [answer.json() for answer in answers] == [{"directive": None}]
    assert "Traceback" not in own.log_path.read_text()
    # The write-ahead log was folded in; looking into the database makes a new one.
    assert not own.database_path.with_name("gradwire.db-wal").exists()
    assert count(own.database_path, "step_windows", stream.run) == 1


def test_connection_outlasts_the_agents_silence(own: ServerProcess) -> None:
    client = own.agent(limits=httpx.Limits(keepalive_expiry=60))
    AgentStream(client).begin()
    # uvicorn's own default of 5 s would close it in between.
    time.sleep(6)
    steps: list[str] = []
    client.get(routes.LIVEZ, extensions={"trace": lambda name, info: steps.append(name)})
    assert "http11.send_request_headers.complete" in steps
    assert "connection.connect_tcp.started" not in steps


def test_livez_and_readyz_need_no_token(own: ServerProcess) -> None:
    assert own.anonymous().get(routes.LIVEZ).status_code == 200
    assert own.anonymous().get(routes.READYZ).json()["status"] == "ready"
