"""A DDP script with no word of Gradwire in its code.

torchrun --nproc-per-node 2 --no-python gradwire run -- examples/plain_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential, functional
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Sequential(Linear(256, 1024), ReLU(), Linear(1024, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs = torch.randn(64, 256)
        loss = functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
