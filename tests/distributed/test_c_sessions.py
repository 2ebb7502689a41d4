"""Trials of compression that need a session: what is told, to whom, and what is claimed."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.training import attach, pulse_with_every_exchange
from gradwire_protocol import routes
from gradwire_protocol.records import Event
from gradwire_server.verdict import reasons
from server_process import ServerProcess, server  # noqa: F401 (a fixture)
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed


def _c09(rank: int, world_size: int, folder: str) -> tuple[list[str], list[str]]:
    """A body that is frozen when the model is wrapped, and trained from step 5 on."""
    torch.manual_seed(0)
    body, head = nn.Linear(8, 8), nn.Linear(8, 1)
    body.requires_grad_(False)
    ddp = DistributedDataParallel(nn.Sequential(body, head))
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gradwire").addHandler(handler)
    session = attach(ddp, None, folder)
    events: list[Event] = []
    session._steering._on_event = events.append
    for step in range(1, 31):
        if step == 5:
            body.requires_grad_(True)
        ddp(torch.ones(2, 8)).sum().backward()
        session.step()
    session.close()
    told = [f"{event.step} {event.level}: {event.message}" for event in events if event.kind == "unfrozen"]
    return told, [text for text in logged if "wrapped" in text]


def test_c09_layers_unfrozen_after_wrapping_are_told_once_by_name(tmp_path):
    (told, logged), (others_told, others_logged) = run_ranks(2, _c09, str(tmp_path))
    assert [text.partition(" began")[0] for text in told] == ["8 error: 0.weight, 0.bias"]
    assert len(logged) == 1
    assert others_told == others_logged == []


def _c15(rank: int, world_size: int, folder: str, which: str) -> dict[str, Any]:
    """Sessions of two models of one shape, or of one of them; D goes back to none in the middle."""
    pulse_with_every_exchange()
    models, sessions, optimizers = {}, {}, {}
    for name in which:
        torch.manual_seed(ord(name))
        models[name] = DistributedDataParallel(nn.Linear(8, 8, bias=False))
        optimizers[name] = torch.optim.SGD(models[name].parameters(), lr=0.05)
        plan = {"codec": "onebit", "min_elements": 1}
        sessions[name] = attach(models[name], optimizers[name], f"{folder}/{which}", plan=plan, name=name)
    generators = {name: torch.Generator().manual_seed(10 * ord(name) + rank) for name in which}
    codecs: dict[str, list[str]] = {name: [] for name in which}
    for step in range(1, 51):
        for name, model in models.items():
            if step == 25 and name == "D":
                sessions[name].rollback("half of the trial is over")
            optimizers[name].zero_grad()
            loss = model(torch.randn(4, 8, generator=generators[name])).square().mean()
            loss.backward()
            optimizers[name].step()
            codecs[name].append(sessions[name].codec)
            sessions[name].step(loss=loss)
    for session in sessions.values():
        session.close()
    return {name: (models[name].module.weight.detach(), codecs[name]) for name in which}


def test_c15_sessions_of_two_models_share_nothing(tmp_path):
    both = run_ranks(2, _c15, str(tmp_path), "GD")
    for name in "GD":
        for together, solo in zip(both, run_ranks(2, _c15, str(tmp_path), name), strict=True):
            assert torch.equal(together[name][0], solo[name][0])
            assert together[name][1] == solo[name][1]
            assert together[name][1][:25] == ["onebit"] * 25
            assert together[name][1][30:] == ["none" if name == "D" else "onebit"] * 20


def _c16(rank: int, world_size: int, folder: str, url: str, token: str) -> tuple[str, int]:
    """Rank 1 runs out of data after three of five steps."""
    pulse_with_every_exchange()
    ddp = DistributedDataParallel(nn.Linear(16, 16))
    plan = {"codec": "int8", "min_elements": 1}
    session = attach(ddp, None, folder, plan=plan, server=url, token=token, run="uneven")
    with Join([ddp]):
        for _ in range(5 if rank == 0 else 3):
            ddp(torch.ones(2, 16)).sum().backward()
            session.step(samples=2)
    session.close()
    return session.run_id, session.current_step - 1


def test_c16_rank_without_data_is_not_called_dead(server: ServerProcess, tmp_path):  # noqa: F811
    client = server.operator()
    (run, num_first), (_, num_second) = run_ranks(2, _c16, str(tmp_path), server.url, server.ingest_token)
    assert (num_first, num_second) == (5, 3)
    summary = client.get(routes.RUN.format(run=run)).json()["summary"]
    assert summary["status"]["name"] == "finished"
    assert (summary["step"], summary["world_size"]) == (5, 2)
    events = client.get(routes.EVENTS.format(run=run)).json()["events"]
    assert not [event for event in events if event["kind"] in ("unsteered", "lost", "failed")]


def _c22(rank: int, world_size: int, folder: str, with_scaler: bool) -> torch.Tensor:
    """Averages under a loss scale that doubles after every second step, in the unit of the gradients."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(8, 8, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=with_scaler)
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 1}, scaler=scaler)
    for step in range(10):
        optimizer.zero_grad()
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        scaler.scale(ddp(data).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        session.step()
    session.close()
    return ddp.module.weight.detach()


def test_c22_a_loss_scale_changes_nothing(tmp_path):
    scaled, plain = (run_ranks(2, _c22, str(tmp_path), with_scaler) for with_scaler in (True, False))
    # A scale is a power of two, so not one bit is lost by it.
    assert torch.equal(scaled[0], scaled[1])
    assert torch.equal(scaled[0], plain[0])


def test_scaler_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"scaler is a str; wanted: a torch\.amp\.GradScaler"):
        attach(nn.Linear(2, 2), None, str(tmp_path), scaler="dynamic")  # type: ignore[arg-type]


def _c23(rank: int, world_size: int, folder: str, url: str, token: str) -> dict[str, list[float]]:
    """Train something tiny until told to stop; returns the settled steps' seconds by codec."""
    ddp = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    session = attach(ddp, optimizer, folder, server=url, token=token, run="tiny")
    stop, seconds, since = torch.zeros(1), {}, {}
    while not stop.item():
        if rank == 0:
            Path(folder, "run").write_text(session.run_id)
            stop[0] = Path(folder, "stop").exists()
        with session.pause("asking whether to stop"):
            dist.broadcast(stop, 0)
        for _ in range(50):
            began = time.perf_counter()
            optimizer.zero_grad()
            ddp(torch.randn(8, 32)).sum().backward()
            optimizer.step()
            codec = session.codec
            session.step(samples=8)
            since[codec] = since.get(codec, 0) + 1
            if since[codec] > 10:
                seconds.setdefault(codec, []).append(time.perf_counter() - began)
    session.close()
    return seconds


def _verdict(client: httpx.Client, folder: Path, codec: str) -> dict[str, Any]:
    """Wait until there is a measured verdict about this codec."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        run = Path(folder, "run").read_text() if Path(folder, "run").exists() else ""
        answer = client.get(routes.RUN.format(run=run)) if run else None
        if answer is not None and answer.status_code == 200:
            verdict: dict[str, Any] = answer.json()["summary"]["verdict"]
            measured = verdict["share"] if codec == "none" else verdict["speedup"]
            # Enough uncompressed steps to compare with later.
            is_enough = verdict["reason"] != reasons.TOO_FEW_STEPS and measured["value"] is not None
            if verdict.get("codec", "") == codec.replace("none", "") and is_enough:
                return verdict
        time.sleep(0.3)
    raise AssertionError(f"no verdict about {codec}")


def test_c23_what_does_not_pay_is_said_from_measured_steps(server: ServerProcess, tmp_path):  # noqa: F811
    client = server.operator()

    def drive() -> dict[str, dict[str, Any]]:
        verdicts = {}
        try:
            for codec in ("none", "powersgd", "onebit"):
                if codec != "none":
                    run = Path(tmp_path, "run").read_text()
                    revision = client.get(routes.RUN.format(run=run)).json()["revision"]
                    parameters = {"rank": 1} if codec == "powersgd" else {}
                    plan = {"codec": codec, "min_elements": 1, "parameters": parameters}
                    answer = client.post(
                        routes.DIRECTIVES.format(run=run), json={"plan": plan, "revision": revision}
                    )
                    assert answer.status_code in (200, 202), answer.text
                verdicts[codec] = _verdict(client, tmp_path, codec)
        finally:
            Path(tmp_path, "stop").touch()
        return verdicts

    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(drive)
        results = run_ranks(2, _c23, str(tmp_path), server.url, server.ingest_token, timeout=170)
        verdicts = driving.result()
    medians = {codec: sorted(seconds)[len(seconds) // 2] for codec, seconds in results[0].items()}
    for codec in ("powersgd", "onebit"):
        verdict, ratio = verdicts[codec], medians["none"] / medians[codec]
        # On a loopback link there is nothing to gain, and no ratio of bytes may say otherwise.
        assert ratio < 1
        assert verdict["kind"] in ("not_paying_off", "cannot_say_pays")
        assert verdict["speedup"]["value"] < 1
        assert verdict["expected_speedup"] is None
        assert verdict["num_uncompressed_steps"] > 0
