"""A plain DDP training with Gradwire inside, for torchrun: trains until the step that a file names.

Usage: train_until.py STOP_FILE. Every rank prints a JSON line whenever its codec changes.
"""

import itertools
import json
import sys
from pathlib import Path

import gradwire
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    stop_file = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = gradwire.attach(model, optimizer=optimizer, run="real", total_steps=100_000)
    codec = ""
    for step in itertools.count(1):
        # The file names a step far ahead, so that both ranks read it before they get there.
        if stop_file.exists() and step > int(stop_file.read_text()):
            break
        inputs = torch.randn(32, 256)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss=loss, samples=len(inputs))
        if session.codec != codec:
            codec = session.codec
            line = {"rank": dist.get_rank(), "step": step, "codec": codec}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    session.close()


if __name__ == "__main__":
    main()
