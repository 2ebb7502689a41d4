"""One rank of `bench.checks`: trains under plain DDP and under int8 with check windows, in turns.

Rank 0 prints one JSON line: the wall time of each step of plain DDP and of each compressed step outside of windows,
and the records of the agent.
"""

import json
import os
import socket
import sys
import tempfile
import time
from typing import Any

import gradwire
import msgspec
import torch
import torch.distributed as dist
from gradwire.steering.checks import Budget
from gradwire_protocol.records import StepWindow

from bench.modes import Replica
from examples.demo import corpus
from examples.demo.model import ByteTransformer

PLAIN_STEPS, COMPRESSED_STEPS = 6, 70


def run(seconds: float) -> dict[str, Any]:
    """Train in turns for so long."""
    rank, began = dist.get_rank(), time.monotonic()
    plain, checked = (Replica(lambda: ByteTransformer(width=256, num_blocks=1, length=64)) for _ in range(2))
    batches = corpus.batches(corpus.load(), size=8, length=64, seed=rank)
    spool = tempfile.mkdtemp(prefix="checks")
    session = gradwire.attach(checked.model, optimizer=checked.optimizer, plan="int8", spool=spool)
    # Windows as often as there are steps to compare with, for the sake of the benchmark.
    session._steering._checks._budget = Budget(1e9)
    records: list[StepWindow] = []
    reporter: Any = session._outlet._reporter
    reporter.report = lambda record, **_: records.append(record)
    spent: dict[str, list[float]] = {"plain": [], "int8": []}
    while _agree(time.monotonic() - began < seconds):
        with session.pause("plain DDP"):
            for _ in range(PLAIN_STEPS):
                spent["plain"].append(_timed(lambda: plain.step(next(batches))))
        for _ in range(COMPRESSED_STEPS):
            took = _timed(lambda: checked.step(next(batches)))
            if session.codec != "none" and not session._steering.is_settling:
                spent["int8"].append(took)
            session.step()
    session._recorder.close(10.0)
    windows = [msgspec.to_builtins(record) for record in records if isinstance(record, StepWindow)]
    return {"seconds": spent, "windows": windows}


def _timed(step: Any) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _agree(value: bool) -> bool:
    box = torch.tensor(int(value))
    dist.broadcast(box, 0)
    return bool(box)


def main() -> None:
    socket.sethostname(f"host{os.environ['GROUP_RANK']}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = run(**json.loads(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
