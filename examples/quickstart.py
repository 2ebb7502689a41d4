"""A plain DDP loop with Gradwire inside: run it with torchrun."""

import gradwire
import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential, functional
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(Sequential(Linear(256, 1024), ReLU(), Linear(1024, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
session = gradwire.attach(model, optimizer=optimizer, run="quickstart", total_steps=500)
for _ in range(500):
    inputs = torch.randn(64, 256)
    loss = functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session.step(loss=loss, samples=len(inputs))
session.close()
dist.destroy_process_group()
