"""One rank of two hosts of two ranks, run by `bench.ranks`: rank 0 prints what each exchange applied and sent."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from gradwire_compression import Exchange, Plan, ddp
from gradwire_compression.observer import Silence
from torch.nn.parallel import DistributedDataParallel

NODES = ((0, 1), (2, 3))
SHAPE = (512, 1024)


class _Given(torch.nn.Module):
    """A model whose gradient is what the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SHAPE))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def _sent_bytes() -> int:
    # Unlike /sys, /proc shows the namespace of whoever reads it.
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


def measure(kind: str, num_steps: int) -> dict[str, float]:
    """Return relative error of the mean, bytes that left this host per step, and what the exchange says of them."""
    module = _Given()
    model = DistributedDataParallel(module)
    exchange = Exchange(
        list(module.named_parameters()),
        None,
        plan=Plan(codec="int8", exchange=kind),
        optimizer_class="SGD",
        observer=Silence(),
        nodes=NODES,
    )
    ddp.attach_ddp(model, exchange)
    generator = torch.Generator().manual_seed(dist.get_rank())
    applied, own = torch.zeros(SHAPE), torch.zeros(SHAPE)
    before = 0
    for step in range(num_steps + 2):
        # DDP talks to everybody until its second step.
        if step == 2:
            dist.barrier()
            before = _sent_bytes()
        gradient = torch.randn(SHAPE, generator=generator)
        model.zero_grad()
        model(gradient).backward()
        assert module.weight.grad is not None
        applied += module.weight.grad
        own += gradient
    dist.barrier()
    sent = _sent_bytes() - before
    dist.all_reduce(own)
    everybody = [torch.empty_like(applied) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, applied)
    exact = own / dist.get_world_size()
    route = exchange.weigh(exchange.plan).route()
    return {
        "error": float((applied - exact).norm() / exact.norm()),
        "num_replicas_equal": sum(torch.equal(applied, other) for other in everybody),
        "sent_bytes": sent / num_steps,
        "node_bytes": route.node_bytes or 0,
        "wire_bytes": route.wire_bytes,
    }


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kinds = json.loads(sys.argv[1])["kinds"]
    found = {kind: measure(kind, 6) for kind in kinds}
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
