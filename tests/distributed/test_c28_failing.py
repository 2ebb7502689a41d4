"""C28: a job that fails or is interrupted ends as it would without the agent, and the run says how."""

import os
import signal
import subprocess
import sys
import time

import pytest
from distributed.jobs import await_status, finish, start
from scripted_server import wait_until
from server_process import ServerProcess, environment, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

SPAWNED = """
import torch.multiprocessing as mp

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(context, data):
        return data.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("broken inside backward")

def let_close_be_long(session):
    gradwire.session.CLOSE_SECONDS = 60.0
    close = session._outlet.close

    def say_and_close(*arguments):
        print("flushes", flush=True)
        return close(*arguments)

    session._outlet.close = say_and_close

def work(rank, store, how):
    model, optimizer = begin(rank, 2, store)
    session = gradwire.attach(model, optimizer=optimizer, run=how)
    if how == "interrupted":
        let_close_be_long(session)
    if how == "at the start":
        raise ValueError("broken at the start")
    for step in range(1, 1000):
        loss = model(torch.ones(2, 8)).square().mean()
        if how == "in backward" and rank == 1 and step == 5:
            loss = Broken.apply(loss)
        loss.backward()
        optimizer.step()
        session.step(loss=loss)
        time.sleep(0.05)
        if rank == 0 and step == 10:
            print("step 10", flush=True)

if __name__ == "__main__":
    mp.spawn(work, (tempfile.mkstemp()[1], sys.argv[1]), nprocs=2)
"""


def _is_alone(job: "subprocess.Popen[str]") -> bool:
    """Return whether nothing is left of the job's process group."""
    try:
        os.killpg(job.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("how", ["at the start", "in backward"])
def test_c28_exception_ends_the_job_and_is_named(how, server: ServerProcess, tmp_path):
    job = start(server, tmp_path, SPAWNED, how)
    status, _, complained = finish(job, 60.0)
    assert status == 1
    assert f"ValueError: broken {'inside backward' if how == 'in backward' else how}" in complained
    assert complained.rstrip().splitlines()[-1].startswith("ValueError: broken")
    wait_until(lambda: _is_alone(job))
    run = await_status(server, how, "failed")
    assert run["status"]["detail"] == "ValueError"


def test_c28_second_interrupt_ends_a_job_that_flushes_against_a_silent_server(tmp_path):
    with ServerProcess(tmp_path) as own:
        job = start(own, tmp_path, SPAWNED, "interrupted")
        assert job.stdout is not None
        assert job.stdout.readline() == "step 10\n"
        await_status(own, "interrupted", "running")
        # Stopped, it takes connections and never answers; the job would wait for a minute.
        os.kill(own.pid, signal.SIGSTOP)
        os.killpg(job.pid, signal.SIGINT)
        assert [job.stdout.readline() for _ in range(2)] == ["flushes\n"] * 2
        # The node's last record is written once both ranks have come to their end.
        wait_until(lambda: any(b"attempt_ended" in one.read_bytes() for one in (tmp_path / "s").rglob("*.segment")))
        assert job.poll() is None, "it flushes"
        began = time.monotonic()
        os.killpg(job.pid, signal.SIGINT)
        status, _, complained = finish(job, 60.0)
        assert time.monotonic() - began < 30
        assert status == -signal.SIGINT, complained
        wait_until(lambda: _is_alone(job))
        own.kill()
        own.restart()
        command = [sys.executable, "-m", "gradwire", "sync", str(tmp_path / "s")]
        done = subprocess.run(command, env=environment(own), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        await_status(own, "interrupted", "interrupted")


PLAIN = """
how = sys.argv[1]
told = []
def handle(number, frame):
    told.append(number)
    sys.exit(128 + number)
if how == "handled":
    signal.signal(signal.SIGTERM, handle)
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
model, optimizer = begin()
session = gradwire.attach(model, optimizer=optimizer, run="ended " + how)
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
for step in range(1, 10000):
    session.step(loss=train(model, optimizer))
    time.sleep(0.01)
    if step == 5:
        print("step 5", flush=True)
    if step == 10 and how == "raised":
        raise LookupError("a word of the user's")
"""


@pytest.mark.parametrize(
    ("how", "number", "exit_status", "status", "detail"),
    [
        ("raised", None, 1, "failed", "LookupError"),
        ("interrupted", signal.SIGINT, -signal.SIGINT, "interrupted", "KeyboardInterrupt"),
        ("handled", signal.SIGTERM, 143, "interrupted", ""),
    ],
)
def test_c28_single_process_ends_as_without_the_agent(
    how,
    number,
    exit_status,
    status,
    detail,
    server: ServerProcess,
    tmp_path,
):
    job = start(server, tmp_path, PLAIN, how)
    assert job.stdout is not None
    assert job.stdout.readline() == "step 5\n"
    if number is not None:
        os.kill(job.pid, number)
    code, _, complained = finish(job, 60.0)
    assert code == exit_status, complained
    last = {"raised": "LookupError: a word of the user's", "interrupted": "KeyboardInterrupt", "handled": ""}[how]
    assert complained.rstrip().endswith(last)
    assert (how == "handled") == ("Traceback" not in complained)
    assert await_status(server, f"ended {how}", status)["status"]["detail"] == detail


def test_c28_sigterm_without_a_handler_ends_at_once_and_its_spool_is_delivered(
    server: ServerProcess,
    tmp_path,
):
    job = start(server, tmp_path, PLAIN, "terminated")
    assert job.stdout is not None
    assert job.stdout.readline() == "step 5\n"
    began = time.monotonic()
    os.kill(job.pid, signal.SIGTERM)
    code, _, complained = finish(job, 60.0)
    assert (code, complained) == (-signal.SIGTERM, "")
    assert time.monotonic() - began < 5
