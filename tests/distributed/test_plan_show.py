"""`gradwire plan show` on a run that trains: every tensor, what it is sent as, and why; real gloo ranks."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.test_steering import directive
from distributed.training import attach, batch, make_model, pulse_with_every_exchange, train_step
from gradwire.cli import main
from gradwire_compression.costs import Line, Link, Links

pytestmark = pytest.mark.distributed

# What is exact costs seconds; what is compressed too, whatever it is.
LATENCY = Links(Link(Line(1.0, 0.0), Line(2.0, 0.0)))
BYTES = Links(Link(Line(0.0, 1e-3), Line(0.0, 1e-3)))


def _shown(folder: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(["plan", "show", "--spool", str(Path(folder) / "spool")])
    return f"{status}\n{out.getvalue()}"


def _run(rank: int, world_size: int, folder: str, figures: Links) -> Any:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, run="toy")
    session._steering.exchange.decide_by(figures)
    events: list[Any] = []
    report = session._steering._on_event
    session._steering._on_event = lambda event: (events.append(event), report(event))
    before = _shown(folder) if rank == 0 else ""
    for step in range(1, 12):
        if rank == 0 and step == 4:
            session._steering.offer(directive(1, "onebit"))
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    dist.barrier()
    after = _shown(folder) if rank == 0 else ""
    session.close()
    return before, after, [(event.kind, event.message, event.data) for event in events]


def test_plan_of_a_running_job_is_shown_tensor_by_tensor(tmp_path):
    before, after, events = run_ranks(2, _run, str(tmp_path), BYTES)[0]
    lines = before.splitlines()
    assert lines[:2] == ["0", "toy: uncompressed on 2 processes"]
    assert lines[3].split() == [
        "TENSOR",
        "SHAPE",
        "TYPE",
        "SENT",
        "AS",
        "BEFORE",
        "SENT",
        "WHY",
        "NOT",
        "COMPRESSED",
    ]
    assert "What is sent is known after the first step." in lines
    assert any(line.startswith("Others would take: bf16 ") for line in lines)
    lines = after.splitlines()
    assert lines[1].startswith("toy: onebit on 2 processes since step ")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[4:12]}
    assert rows["3.weight"].startswith("64 x 64 float32 onebit 16.4 kB ")
    assert rows["2.weight"] == "64 float32 uncompressed 256 B 256 B at most one dimension"
    assert rows["5.bias"] == "1 float32 uncompressed 4 B 4 B at most one dimension"
    assert len(rows) == 8
    (sent,) = (line for line in lines if line.startswith("Each process sends "))
    assert sent.endswith(" times fewer bytes.")
    assert " of float32: " in sent
    assert any(line.startswith("Extra memory on each process: ") for line in lines)
    assert not any("should be faster" in line for line in lines)
    assert [event for event in events if event[0] == "spared"] == []


def test_buckets_that_are_spared_are_told_with_both_figures(tmp_path):
    (_, after, events), (_, _, others) = run_ranks(2, _run, str(tmp_path), LATENCY)
    assert " x 64  float32  uncompressed  " in after
    assert "should take 1e+03 ms uncompressed and 2e+03 ms with onebit" in after
    (told,) = (event for event in events if event[0] == "spared")
    assert told[1].startswith(f"{told[2]['num_buckets']} of {told[2]['num_buckets']} buckets travel uncompressed")
    assert told[1] in after
    assert told[2]["exact_seconds"] * 1.9 < told[2]["lossy_seconds"]
    assert [event for event in others if event[0] == "spared"] == []
