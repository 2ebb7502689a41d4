"""One rank of the soak: trains a small model until rank 0's time is up, and says how many steps it made."""

import json
import os
import sys
import time

import gradwire
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> int:
    options = json.loads(sys.argv[1])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = {name: options[name] for name in ("server", "token", "spool")}
    session = gradwire.attach(model, optimizer=optimizer, run="soak", **given)
    until, step, is_over = time.monotonic() + options["seconds"], 0, torch.zeros(1)
    while not is_over.item():
        step += 1
        time.sleep(options["step_seconds"])
        loss = model(torch.ones(4, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # The number of the step, so that a value in a wrong place is seen.
        session.step(loss=float(step), samples=4)
        is_over[0] = rank == 0 and time.monotonic() >= until
        dist.broadcast(is_over, 0)
    summary = session.close()
    assert summary is not None
    left = [summary.num_undelivered, summary.num_dropped]
    print(json.dumps({"rank": rank, "run": session.run_id, "steps": step, "left": left}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
