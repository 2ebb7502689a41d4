"""C41: a rollback lands in uncompressed training on all ranks at one step, whatever they are doing."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gradwire
import pytest
import torch
import torch.distributed as dist
from distributed.jobs import run_of
from distributed.ranks import run_ranks
from distributed.training import (
    attach,
    batch,
    changes,
    flat,
    make_model,
    pulse_with_every_exchange,
    tell,
    train_step,
)
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec
from scripted_server import wait_until
from server_process import ServerProcess, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

WORDS = ("train", "evaluate", "save", "nan", "stop")
_PAUSE_SECONDS = 3.0


def _train(rank: int, world_size: int, folder: str, url: str, token: str) -> tuple[Any, ...]:
    """Do what the file `word` says, all ranks at the same step; `doing` says that a pause has begun."""
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token=token, run="odd moments")
    history: list[tuple[int, str]] = []
    word = torch.zeros(1, dtype=torch.int64)
    while WORDS[int(word)] != "stop":
        time.sleep(0.01)
        loss = train_step(ddp, optimizer, batch(rank, session.current_step))
        history.append((session.current_step, session.codec))
        session.step(loss=loss * float("nan") if WORDS[int(word)] == "nan" else loss, samples=16)
        if rank == 0:
            tell(folder, "step", session.current_step)
            said = Path(folder, "word")
            word[0] = WORDS.index(said.read_text()) if said.exists() else 0
            said.unlink(missing_ok=True)
        dist.broadcast(word, 0)
        if WORDS[int(word)] == "evaluate":
            with session.pause("evaluation"):
                if rank == 0:
                    Path(folder, "doing").touch()
                    until = time.monotonic() + _PAUSE_SECONDS
                    with torch.no_grad():
                        while time.monotonic() < until:
                            ddp.module(batch(0, 1))
                dist.barrier()
        elif WORDS[int(word)] == "save":
            with session.pause("checkpoint"):
                Path(folder, "doing").touch()
                time.sleep(_PAUSE_SECONDS)
                gradwire.save_state(session.state_dict(), f"{folder}/checkpoint")
                torch.save(ddp.module.state_dict(), f"{folder}/weights{rank}.pt")
                dist.barrier()
    state = gradwire.load_state(f"{folder}/checkpoint")
    assert state is not None
    session.close()
    return changes(history), flat(ddp), str(state["plan"]["codec"]), int(state["step"])


class _Operator:
    """Somebody at the page of the run."""

    def __init__(self, process: ServerProcess, folder: Path, training: "Future[Any]") -> None:
        self._client = process.operator()
        self._folder = folder
        self._training = training
        wait_until(lambda: self._is_alive() and (folder / "step").exists(), 60.0)
        self.run = str(run_of(process, "odd moments")["id"])

    def _is_alive(self) -> bool:
        assert not self._training.done(), self._training.result()
        return True

    def view(self) -> dict[str, Any]:
        self._is_alive()
        view: dict[str, Any] = self._client.get(routes.RUN.format(run=self.run)).json()
        return view

    def set(self, codec: str) -> None:
        spec = PlanSpec(codec=codec, min_elements=1, every_bucket=True)
        body = encode(SetRequest(plan=spec, revision=self.view()["revision"]))
        answer = self._client.post(routes.DIRECTIVES.format(run=self.run), content=body)
        assert answer.status_code == 202, answer.text
        self.await_change(codec)

    def roll_back(self) -> dict[str, Any]:
        answer = self._client.post(routes.ROLLBACK.format(run=self.run), content=encode(RollbackRequest()))
        assert answer.status_code in (200, 202), answer.text
        told: dict[str, Any] = answer.json()
        return told

    def await_change(self, codec: str) -> None:
        def is_so() -> bool:
            view = self.view()
            return view["plan"]["codec"] == codec and view["last_change"]["state"] == "applied"

        wait_until(is_so, 30.0, lambda: self.view()["last_change"])
        change = self.view()["last_change"]
        assert change["num_ranks_confirmed"] == change["num_ranks"] == 2

    def say(self, word: str) -> None:
        tell(self._folder, "word", word)

    def say_and_wait(self, word: str) -> None:
        (self._folder / "doing").unlink(missing_ok=True)
        self.say(word)
        wait_until(lambda: self._is_alive() and (self._folder / "doing").exists(), 30.0)


def test_c41_rollback_in_odd_moments(server: ServerProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(run_ranks, 2, _train, str(tmp_path), server.url, server.ingest_token, timeout=150)
        operator = _Operator(server, tmp_path, training)
        # (e) Nothing to roll back to.
        answer = operator.roll_back()
        assert answer["directive"] is None
        assert "uncompressed" in answer["message"]
        # (a) In normal training, from the second codec in a row, after a loss that is not a number.
        operator.set("onebit")
        operator.set("topk")
        operator.say("nan")
        assert operator.roll_back()["directive"] is not None
        operator.await_change("none")
        # (b) While rank 0 evaluates and rank 1 waits for it.
        operator.set("topk")
        operator.say_and_wait("evaluate")
        operator.roll_back()
        assert operator.view()["last_change"]["state"] in ("requested", "delivered"), "pending, not said to be done"
        operator.await_change("none")
        # (c) While all save a checkpoint.
        operator.set("topk")
        operator.say_and_wait("save")
        operator.roll_back()
        operator.await_change("none")
        # (d) Twice at once.
        operator.set("topk")
        first, second = operator.roll_back(), operator.roll_back()
        assert second["directive"] is None or second["directive"]["revision"] == first["directive"]["revision"]
        operator.await_change("none")
        operator.say("stop")
        (one, weights, codec, step), (other, other_weights, *_) = training.result()
    assert one == other
    assert [codec for _, codec in one] == ["none", "onebit", *["topk", "none"] * 4]
    assert torch.equal(weights, other_weights)
    assert torch.isfinite(weights).all()
    # What was saved is whole, and of the plan that was in use then.
    assert codec == "topk"
    for rank in range(2):
        saved = torch.load(tmp_path / f"weights{rank}.pt", weights_only=True)
        assert all(torch.isfinite(value).all() for value in saved.values())
    begun = [since for since, codec in one if codec == "none"]
    # The first exchange after the pause tells all ranks, the second one is uncompressed.
    assert any(since in (step + 1, step + 2) for since in begun)
