"""C26: processes that torchrun starts anew are a new attempt of one run, and nothing of the first one is lost."""

import pytest
from distributed.jobs import await_status, finish, loss_points, start
from scripted_server import wait_until
from server_process import ServerProcess, server
from stored import rows

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

# Nothing is told of Gradwire but where the second attempt begins, which the script knows from its own checkpoint.
RESTARTED = """
checkpoint = sys.argv[1]
model, optimizer = begin()
begun_at = torch.load(checkpoint, weights_only=True)["step"] if os.path.exists(checkpoint) else 0
with gradwire.attach(model, optimizer=optimizer, run="restarted", start_step=begun_at) as session:
    for step in range(begun_at + 1, 21):
        train(model, optimizer)
        if step == 7 and dist.get_rank() == 1 and begun_at == 0:
            raise ValueError("the first attempt ends here")
        session.step(loss=1 / step)
        if step == 5:
            dist.barrier()
            if dist.get_rank() == 0:
                torch.save({"step": 5}, checkpoint)
            dist.barrier()
dist.destroy_process_group()
"""


def test_c26_restart_under_torchrun_is_one_run_with_two_attempts(
    server: ServerProcess,
    tmp_path,
    monkeypatch,
):
    # By default torchrun of torch 2.13 hands a restart the store of the attempt before, whose addresses gloo then
    # waits for, with or without Gradwire.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    status, _, complained = finish(start(server, tmp_path, RESTARTED, str(tmp_path / "step.pt"), torchrun=options))
    assert status == 0, complained
    run = await_status(server, "restarted", "finished")
    expected = [(step, 1, pytest.approx(1 / step)) for step in range(1, 21)]
    wait_until(lambda: len(loss_points(server, run["id"])) == 20, 20.0, lambda: loss_points(server, run["id"]))
    assert loss_points(server, run["id"]) == expected
    first, second = rows(server.database_path, "SELECT * FROM attempts WHERE run = ? ORDER BY number", run["id"])
    assert (first["number"], first["start_step"], second["number"], second["start_step"]) == (1, 0, 2, 5)
    steps = [step for step, _, _ in loss_points(server, run["id"], attempt=first["id"])]
    assert steps in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert [step for step, _, _ in loss_points(server, run["id"], attempt=second["id"])] == list(range(6, 21))
    # Each rank is one of the attempt that counts, and only once.
    assert run["world_size"] == 2
    assert rows(server.database_path, "SELECT ranks FROM nodes WHERE attempt = ?", second["id"]) == [
        {"ranks": "[0, 1]"}
    ]
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["launches"]


# A second launch of the same script is another job, whatever it is called.
TWICE = """
model, optimizer = begin()
with gradwire.attach(model, optimizer=optimizer, run="twice") as session:
    session.step(loss=train(model, optimizer))
dist.destroy_process_group()
"""


def test_c26_another_launch_of_the_script_is_another_run(server: ServerProcess, tmp_path):
    for _ in range(2):
        status, _, complained = finish(start(server, tmp_path, TWICE, torchrun=("--nproc-per-node", "1")))
        assert status == 0, complained
    names = rows(server.database_path, "SELECT id FROM runs WHERE name = 'twice'")
    assert len(names) == 2
