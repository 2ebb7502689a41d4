"""Processes that training starts: forked children and loader workers neither report nor end the run."""

import pytest
from distributed.jobs import await_status, finish, loss_points, start
from server_process import ServerProcess, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

# Children leave both ways: at once, and through the exit hooks that they inherit. After those, sys.exit would take
# apart the inherited gloo group, on which plain torch hangs with or without Gradwire.
FORKING = """
import atexit
from torch.utils.data import DataLoader

def fork_child(leave):
    child = os.fork()
    if child == 0:
        if leave is sys.exit:
            atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

model, optimizer = begin()
for repetition in range(20):
    session = gradwire.attach(model, optimizer=optimizer, run=f"forks {repetition}")
    loader = DataLoader(
        torch.ones(40, 8), batch_size=2, num_workers=2, multiprocessing_context="fork", persistent_workers=False
    )
    for epoch in range(5):
        for data in loader:
            time.sleep(0.01 if repetition == 0 else 0)
            session.step(loss=train(model, optimizer, data))
        if epoch == 1:
            fork_child(os._exit)
        if epoch == 3:
            fork_child(sys.exit)
    session.close()
    model, optimizer = DistributedDataParallel(model.module), optimizer
print("done", flush=True)
"""


def test_c24_forked_children_report_nothing_and_end_nothing(server: ServerProcess, tmp_path):
    status, said, complained = finish(start(server, tmp_path, FORKING))
    assert (status, said) == (0, "done\n"), complained
    for repetition in range(20):
        run = await_status(server, f"forks {repetition}", "finished")
        points = loss_points(server, run["id"])
        assert [(step, count) for step, count, _ in points] == [(step, 1) for step in range(1, 101)]


# The agent is made at module level, and the guard is round the training call only, as in scripts that people have.
SPAWNING = """
from torch.utils.data import DataLoader

if __name__ != "__main__":
    # A worker that joined the ranks' own group would hang with or without Gradwire.
    del os.environ["WORLD_SIZE"]
model, optimizer = begin()
session = gradwire.attach(model, optimizer=optimizer, run="spawned")

def run():
    loader = DataLoader(torch.ones(40, 8), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    for data in loader:
        session.step(loss=train(model, optimizer, data))
    session.close()
    dist.destroy_process_group()

if __name__ == "__main__":
    run()
"""


def test_c25_workers_that_import_the_script_make_no_runs(server: ServerProcess, tmp_path):
    job = start(server, tmp_path, SPAWNING, torchrun=("--nproc-per-node", "2"))
    status, _, complained = finish(job)
    assert status == 0, complained
    run = await_status(server, "spawned", "finished")
    assert run["world_size"] == 2
    assert [step for step, _, _ in loss_points(server, run["id"])] == list(range(1, 21))
    assert complained.count("attached in a worker process") == 4
