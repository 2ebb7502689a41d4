"""One rank of the demo: an ordinary DistributedDataParallel loop with Gradwire attached in two lines.

Prints one JSON line per step for the demo's progress line, and at the end a hash of all parameters.
"""

import argparse
import hashlib
import itertools
import json
import sys
import time
from pathlib import Path

import gradwire
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.demo import corpus
from examples.demo.model import ByteTransformer

# With these an uncompressed step over 1 Gbit/s spends about half its time on exposed communication: one core
# computes for about 0.16 s and 22.7 MB of gradients travel for 0.18 s.
BATCH_SIZE = 6
LENGTH = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="end after this many steps")
    parser.add_argument("--stop-file", type=Path, required=True, help="names the step to stop at, once it exists")
    return parser.parse_args()


def last_step(steps: int | None, stop_file: Path) -> float:
    """Return the step to stop after; every rank reads the same file well before it gets there."""
    if stop_file.exists():
        return int(stop_file.read_text())
    return float("inf") if steps is None else steps


def hash_of(model: nn.Module) -> str:
    """Return a hash of every parameter and buffer, equal on two ranks only if they are equal bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def say(**line: object) -> None:
    # One write per line: the ranks share a pipe, which never tears a write of less than 4 kB.
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), **line}) + "\n")
    sys.stdout.flush()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ByteTransformer(length=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    session = gradwire.attach(model, optimizer=optimizer, run="demo", total_steps=options.steps)
    data = corpus.batches(corpus.load(), size=BATCH_SIZE, length=LENGTH, seed=dist.get_rank())

    for step in itertools.count(1):
        if step > last_step(options.steps, options.stop_file):
            break
        began = time.perf_counter()
        text, target = next(data)
        loss = model.module.loss(model(text), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss=loss, samples=BATCH_SIZE, tokens=text.numel())
        say(step=step, loss=loss.item(), seconds=time.perf_counter() - began, codec=session.codec)

    session.close()
    say(hash=hash_of(model.module))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
