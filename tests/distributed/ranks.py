"""Real gloo processes for tests: one function on every rank, with a watchdog."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

# Ranks fork from a server that has loaded what they all need: a start costs milliseconds instead of seconds. What
# loads torch._dynamo otherwise is the first DDP model.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "gradwire",
    "gradwire_compression",
    "pytest",
]
_CONTEXT.set_forkserver_preload(_PRELOADED)


def preload(*modules: str) -> None:
    """Have the server load `modules` as well; called where test modules begin, so only if their tests may run."""
    _PRELOADED.extend(module for module in modules if module not in _PRELOADED)
    _CONTEXT.set_forkserver_preload(_PRELOADED)


class RankFailedError(AssertionError):
    """Raised when a rank raised, died or did not end in time; the text has every rank's fate."""


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60.0,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Run `function(rank, world_size, *args)` in `world_size` processes that share a gloo default group.

    Args:
        world_size: Number of processes.
        function: Defined at the top level of a module; what it returns must pickle (tensors do).
        args: Further arguments, pickled.
        timeout: Seconds after which all ranks are killed and the call fails.
        environment: Variables to set in the ranks before the group is made.

    Returns:
        What each rank returned, in rank order.

    Raises:
        RankFailedError: A rank raised, died or was killed by the watchdog.
    """
    with tempfile.TemporaryDirectory(prefix="ranks") as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_run_rank,
                args=(rank, world_size, f"{folder}/store", sender, function, args, environment or {}),
                daemon=True,
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        patience = 0.0
        try:
            outcomes = _collect(pipes, time.monotonic() + timeout)
            # Ranks that answered still take down their group together.
            patience = 10.0 if all(is_ok for is_ok, _ in outcomes) else 0.0
        finally:
            for process in processes:
                process.join(timeout=patience)
                process.kill()
                process.join()
    failures = [f"rank {rank}: {text}" for rank, (is_ok, text) in enumerate(outcomes) if not is_ok]
    if failures:
        raise RankFailedError("\n".join(failures))
    return [value for _, value in outcomes]


def _collect(pipes: list[Connection], deadline: float) -> list[tuple[bool, Any]]:
    """Return (ok, value or reason) of every rank; after the first failure the others get five seconds more."""
    outcomes: dict[int, tuple[bool, Any]] = {}
    open_pipes = dict(enumerate(pipes))
    while open_pipes and (left := deadline - time.monotonic()) > 0:
        ready = wait(list(open_pipes.values()), timeout=left)
        for rank, pipe in list(open_pipes.items()):
            if pipe not in ready:
                continue
            try:
                outcomes[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                outcomes[rank] = (False, "died without a word")
            if not outcomes[rank][0]:
                deadline = min(deadline, time.monotonic() + 5)
            del open_pipes[rank]
    return [outcomes.get(rank, (False, "did not end in time")) for rank in range(len(pipes))]


def _run_rank(
    rank: int,
    world_size: int,
    store: str,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=30),
    )
    try:
        outcome = (True, function(rank, world_size, *args))
    except BaseException:
        outcome = (False, traceback.format_exc())
    # Plain pickle copies tensors by value; torch's own pickler for pipes would hand over memory that dies with us.
    sender.send_bytes(pickle.dumps(outcome))
    sender.close()
    if outcome[0] and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
