"""Odd places and lives of a session: no server group, one rank, a notebook, several models, pauses."""

import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed.jobs import await_status, run_of
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, pulse_with_every_exchange, train_step
from gradwire import groups, wiring
from gradwire_protocol import routes
from server_process import ServerProcess, environment, server
from stored import rows

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def _unsteered(rank: int, world_size: int, folder: str, url: str, token: str) -> tuple[Any, ...]:
    """Rank 1 has no interface of the name that it is told, so the side group opens on no rank."""
    groups.OPEN_SECONDS = 3.0
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gradwire").addHandler(handler)
    open_side_group = groups.open_side_group

    def open_elsewhere(group: dist.ProcessGroup) -> dist.ProcessGroup:
        os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0" if rank == 1 else "lo"
        try:
            return open_side_group(group)
        finally:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    groups.open_side_group = open_elsewhere
    connect = wiring._exchange

    def connect_late(*arguments: Any) -> Any:
        # What rank 0 left in the store under the name of its group must not be waited for by rank 1.
        time.sleep(0.5 if rank == 0 else 0.0)
        return connect(*arguments)

    wiring._exchange = connect_late
    ddp, optimizer = make_model()
    began = time.monotonic()
    session = attach(ddp, optimizer, folder, server=url, token=token, run="unsteered", plan="int8")
    seconds = time.monotonic() - began
    for step in range(1, 21):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)), samples=16)
    session.close()
    # The parent has the limit of real life.
    return seconds / groups.OPEN_SECONDS, [text for text in logged if "measured, not steered" in text], flat(ddp)


def test_side_group_that_cannot_open_leaves_training_measured(server: ServerProcess, tmp_path: Path) -> None:
    results = run_ranks(2, _unsteered, str(tmp_path), server.url, server.ingest_token)
    for num_openings, logged, _ in results:
        # One opening that fails is waited for, and no second one after it.
        assert num_openings < 3
        assert len(logged) == 1
        assert "GLOO_SOCKET_IFNAME" in logged[0]
    assert results[0][2].equal(results[1][2])
    run = await_status(server, "unsteered", "finished")
    view = server.operator().get(routes.RUN.format(run=run["id"])).json()
    assert not view["is_steered"]
    assert run["step"] == 20


def _late(rank: int, world_size: int, folder: str) -> bool:
    """Rank 1 comes to `attach` later than a side group may take to open."""
    groups.OPEN_SECONDS = 1.0
    ddp, optimizer = make_model()
    if rank == 1:
        time.sleep(3.0)
    session = attach(ddp, optimizer, folder)
    session.step(loss=train_step(ddp, optimizer, batch(rank, 1)))
    is_steered: bool = session._steering.is_steered
    session.close()
    return is_steered


def test_rank_that_is_late_to_attach_loses_no_steering(tmp_path: Path) -> None:
    assert run_ranks(2, _late, str(tmp_path)) == [True, True]


def _two_models(rank: int, world_size: int, folder: str, url: str, token: str) -> list[str]:
    """A generator and a critic of one run, then a training of its own."""
    pulse_with_every_exchange()
    given = {"server": url, "token": token, "run": "two models"}
    pairs = [make_model() for _ in range(3)]
    first, second = (attach(*pair, folder, name=name, **given) for pair, name in zip(pairs, "GD", strict=False))
    for step in range(1, 11):
        for session, pair in ((first, pairs[0]), (second, pairs[1])):
            session.step(loss=train_step(*pair, batch(rank, step)), samples=16)
    first.close()
    second.close()
    third = attach(*pairs[2], folder, **given)
    third.step(loss=train_step(*pairs[2], batch(rank, 1)), samples=16)
    third.close()
    return [first.run_id, second.run_id, third.run_id]


def test_models_of_one_process_are_one_run_and_one_attempt(server: ServerProcess, tmp_path: Path) -> None:
    ids, others = run_ranks(2, _two_models, str(tmp_path), server.url, server.ingest_token)
    assert ids == others
    assert ids[0] == ids[1] != ids[2]
    assert len(rows(server.database_path, "SELECT * FROM attempts WHERE run = ?", ids[0])) == 1
    models = rows(server.database_path, "SELECT name FROM models WHERE run = ? ORDER BY name", ids[0])
    assert [model["name"] for model in models] == ["D", "G"]
    view = server.operator().get(routes.RUN.format(run=ids[0])).json()
    assert view["summary"]["status"]["name"] == "finished"


def _paused(rank: int, world_size: int, folder: str, url: str, token: str) -> None:
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token=token, run="pauses")
    for step in range(1, 31):
        if step == 15:
            with session.pause("evaluation"):
                time.sleep(1.0)
                session.evaluate(accuracy=0.5)
        time.sleep(0.02)
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)), samples=16)
    session.close()


def test_pauses_of_a_single_rank_are_kept_out_of_its_steps(server: ServerProcess, tmp_path: Path) -> None:
    run_ranks(1, _paused, str(tmp_path), server.url, server.ingest_token)
    run = await_status(server, "pauses", "finished")
    assert run["world_size"] == 1
    sums = server.operator().get(routes.SERIES.format(run=run["id"])).json()["steps"]
    assert sum(one["pause"] for one in sums) >= 1.0
    assert sum(one["step"] - one["pause"] for one in sums) < 30 * 0.02 + 1.0
    assert max(one["step_max"] for one in sums) < 1.0


# What a notebook's kernel does: cells in a main module without a file, one that fails, and one that trains.
NOTEBOOK = """
import code, sys
sys.ps1 = "In: "
console = code.InteractiveConsole({"__name__": "__main__"})
for cell in CELLS:
    console.runcode(compile(cell, "<cell>", "exec"))
"""
CELLS = [
    "raise LookupError('a slip of the fingers')",
    """
import os, tempfile, torch, gradwire
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://" + tempfile.mkstemp()[1], rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
session = gradwire.attach(model, run=os.environ["NAME"])
""",
    """
for _ in range(5):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    session.step(loss=loss, samples=2)
""",
]


def test_notebook_without_a_main_file_is_measured(server: ServerProcess, tmp_path: Path) -> None:
    variables = {"GRADWIRE_SPOOL": str(tmp_path / "s"), "NAME": "notebook", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-c", f"CELLS = {CELLS!r}\n{textwrap.dedent(NOTEBOOK)}"],
        env=environment(server) | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    await_status(server, "notebook", "finished")
    assert run_of(server, "notebook")["step"] == 5


def _end_all(rank, world_size):
    """Use up names as after a side that did not open, and end the process group as scripts do."""
    groups.use_up_names(groups.num_names() + 2)
    dist.destroy_process_group()
    return not dist.is_initialized()


def test_names_without_a_group_do_not_hurt_the_end_of_all_groups():
    assert run_ranks(2, _end_all) == [True, True]
