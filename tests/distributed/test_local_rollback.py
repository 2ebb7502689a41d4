"""`gradwire rollback --local` with the server killed: all ranks at one step, audited when it is back."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.training import attach, batch, changes, flat, make_model, train_step
from gradwire.transport.operator import find_nodes
from scripted_server import wait_until
from server_process import ServerProcess, environment
from stored import history, model_row, rows

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

PLAN = {"codec": "onebit", "min_elements": 1, "every_bucket": True}


def _train(rank: int, world_size: int, folder: str, url: str, token: str) -> tuple[Any, ...]:
    """Four ranks on two nodes train until they are told to stop."""
    os.environ["GROUP_RANK"] = str(rank // 2)
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token=token, run="on call", plan=PLAN)
    codecs: list[tuple[int, str]] = []
    stop = torch.zeros(1)
    while not stop.item():
        time.sleep(0.02)
        loss = train_step(ddp, optimizer, batch(rank, session.current_step))
        codecs.append((session.current_step, session.codec))
        session.step(loss=loss, samples=16)
        stop[0] = rank == 0 and Path(folder, "stop").exists()
        dist.broadcast(stop, 0)
    run = session.run_id
    session.close()
    return changes(codecs), flat(ddp), run


def _roll_back(folder: Path, server: ServerProcess) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gradwire", "rollback", "--local", "--reason", "loss spike"]
    command += ["--spool", str(folder / "spool")]
    return subprocess.run(command, env=environment(server), capture_output=True, text=True, timeout=60, check=False)


def test_local_rollback_reaches_all_ranks_and_is_audited_when_the_server_returns(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        training = pool.submit(run_ranks, 4, _train, str(tmp_path), server.url, server.ingest_token, timeout=150)
        wait_until(lambda: training.done() or len(find_nodes([tmp_path / "spool"])) == 2, 60.0)
        database = server.database_path
        wait_until(lambda: bool(rows(database, "SELECT * FROM step_windows")), 60.0)
        server.kill()
        done = _roll_back(tmp_path, server)
        assert done.returncode == 0, done.stderr
        assert re.match(r"Uncompressed on all 4 processes since step \d+, \d+\.\d s\.", done.stdout), done.stdout
        assert _roll_back(tmp_path, server).stdout.startswith("Already uncompressed since step ")
        assert rows(database, "SELECT * FROM audit WHERE action = 'rollback'") == []
        server.restart()
        wait_until(lambda: bool(rows(database, "SELECT * FROM audit WHERE action = 'rollback'")), 60.0)
        (tmp_path / "stop").touch()
        (told, weights, run), *others = training.result()
        assert [codec for _, codec in told] == ["onebit", "none"]
        for other, other_weights, _ in others:
            assert other == told
            assert torch.equal(other_weights, weights)
        (entry,) = rows(database, "SELECT * FROM audit WHERE action = 'rollback'")
        step = told[1][0]
        assert (entry["run"], entry["actor"], entry["reason"]) == (run, "local", "loss spike")
        assert json.loads(entry["after"])["step"] == step
        model = model_row(database, run)
        assert (model["plan"]["codec"], model["since_step"], model["num_ranks_confirmed"]) == ("none", step, 4)
        switched = [event for event in history(database, run) if event["kind"] == "switched"]
        assert [event["step"] for event in switched] == [step]
