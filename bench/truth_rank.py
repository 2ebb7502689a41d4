"""One rank of `bench.truth`: trains steps whose parts last a known time, and reads back what the agent recorded.

Rank 0 prints one JSON line: for each scenario and rank, the seconds that were injected and the seconds that the
windows in the rank's spool hold, both summed over the same steps.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gradwire
import torch
import torch.distributed as dist
from gradwire import wiring
from gradwire.transport.place import find_streams
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.collectives import compat
from gradwire_protocol.records import StepWindow
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.gpu_timing import spooled
from bench.numbers import middle

PHASES = ("data_wait", "forward", "backward", "transfer", "wait", "codec", "optimizer", "pause", "other")
# Where a window holds a phase under another name.
NAMES = {"transfer": "exposed_transfer", "wait": "straggler_wait", "codec": "exposed_codec"}
BATCH, WIDTH = 4, 64
# A whole Ethernet frame over the bytes of TCP that it carries.
FRAME = 1514 / 1448
HOP_REPEATS = 9


@dataclass(frozen=True)
class Scenario:
    """What is injected into every step, seconds and bytes."""

    name: str
    data_wait: float = 0.0
    forward: float = 0.0
    # Before the first gradient is there, and between the first bucket and the second.
    backward: float = 0.0
    between: float = 0.0
    # Gradient bytes of the two buckets.
    first_bytes: int = 16_384
    second_bytes: int = 16_384
    # Rank 1 computes this much longer before its backward pass.
    straggle: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    optimizer: float = 0.0
    pause: float = 0.0
    other: float = 0.0
    # Compute that keeps a core busy instead of sleeping.
    is_busy: bool = False
    is_steered: bool = True


@dataclass(frozen=True)
class Settings:
    """What to run, from the command line."""

    scenarios: list[dict[str, Any]]
    num_steps: int
    # Bytes per second of each rank's link, and what may pass at once after a pause.
    link: int
    burst: int
    folder: str


@dataclass
class Truth:
    """What really happened in one step of this rank, seconds, and when its first and its last bucket were there."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, "overlapped"), 0.0))
    first: float = 0.0
    last: float = 0.0

    def add_exchange(self, ready: Sequence[tuple[float, float]], first: float, second: float) -> None:
        """Add where the time of two buckets goes on this rank.

        Args:
            ready: When each rank's first and last bucket were there; a bucket travels when all ranks have it.
            first: Seconds of the first one on the link.
            second: Seconds of the second one, which follows the first.
        """
        begin = max(one for one, _ in ready)
        middle = begin + first
        resume = max(middle, *(last for _, last in ready))
        # What ends before this rank's last gradient is there is hidden.
        self.seconds["wait"] = max(0.0, begin - self.last) + max(0.0, resume - max(self.last, middle))
        self.seconds["transfer"] = max(0.0, middle - max(begin, self.last)) + second
        self.seconds["overlapped"] = max(0.0, min(self.last, middle) - self.first)


class Injection:
    """Lets parts of the step last as long as the scenario says, and notes how long they really lasted."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.step = Truth()
        self._matrix = torch.randn(128, 128)

    def spend(self, phase: str, seconds: float) -> None:
        """Let `seconds` pass in `phase`."""
        if not seconds:
            return
        began = time.perf_counter()
        if self.scenario.is_busy:
            while time.perf_counter() - began < seconds:
                self._matrix @ self._matrix
        else:
            time.sleep(seconds)
        self.step.seconds[phase] += time.perf_counter() - began


class _Backward(torch.autograd.Function):
    """Passes the value on; its backward pass takes the scenario's time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, injection: Injection, seconds: float, is_first: bool) -> Tensor:
        ctx.injection, ctx.seconds, ctx.is_first = injection, seconds, is_first
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.injection.spend("backward", ctx.seconds)
        now = time.perf_counter()
        if ctx.is_first:
            ctx.injection.step.first = now
        ctx.injection.step.last = now
        return gradients[0], None, None, None


def injected_backward(x: Tensor, injection: Injection, seconds: float, is_first: bool) -> Tensor:
    """Return `x`; its backward pass takes `seconds`."""
    passed: Tensor = _Backward.apply(x, injection, seconds, is_first)  # type: ignore[no-untyped-call]
    return passed


class Model(nn.Module):
    """Two linear layers, one bucket each, whose passes take as long as the scenario says."""

    def __init__(self, injection: Injection) -> None:
        super().__init__()
        scenario = injection.scenario
        self._injection = injection
        # Backward meets `late` first, so its gradient is the first bucket.
        self.early = nn.Linear(scenario.second_bytes // 4 // WIDTH, WIDTH, bias=False)
        self.late = nn.Linear(WIDTH, scenario.first_bytes // 4 // WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Take the scenario's time and use both layers."""
        injection, scenario = self._injection, self._injection.scenario
        injection.spend("forward", scenario.forward)
        between = injected_backward(self.early(x), injection, scenario.between, False)
        return injected_backward(self.late(between), injection, scenario.backward, True)


class SlowOptimizer(torch.optim.SGD):
    """Takes its time before and after the real step, as an optimizer built upon another does."""

    def __init__(self, parameters: Any, injection: Injection) -> None:
        super().__init__(parameters, lr=0.01)
        self._injection = injection

    def step(self, closure: Any = None) -> Any:
        """Take half of the scenario's time, step, and take the other half."""
        half = self._injection.scenario.optimizer / 2
        self._injection.spend("optimizer", half)
        result = super().step(closure)
        self._injection.spend("optimizer", half)
        return result


class SlowCodec:
    """Lets every codec take the scenario's time more, and notes what encoding and decoding really took."""

    def __init__(self) -> None:
        self.injection: Injection | None = None
        for name, operation in {"encode_shards": "encode", "reduce": "decode", "decode_shards": "decode"}.items():
            self._wrap(name, operation)

    def _wrap(self, name: str, operation: str) -> None:
        inner = getattr(ScaledCodec, name)

        def slow(codec: ScaledCodec, *args: Any) -> Any:
            if self.injection is None:
                return inner(codec, *args)
            began = time.perf_counter()
            time.sleep(getattr(self.injection.scenario, operation))
            result = inner(codec, *args)
            self.injection.step.seconds["codec"] += time.perf_counter() - began
            return result

        setattr(ScaledCodec, name, slow)


class Trial:
    """One scenario on this rank."""

    def __init__(self, settings: Settings, scenario: Scenario) -> None:
        self._settings, self._scenario = settings, scenario
        self._injection = Injection(scenario)
        torch.manual_seed(0)
        model = Model(self._injection)
        self._data = torch.randn(BATCH, model.early.in_features)
        self._ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
        self._optimizer = SlowOptimizer(self._ddp.parameters(), self._injection)
        self._truths: list[Truth] = []

    def run(self, codec: SlowCodec) -> list[dict[str, dict[str, Any]]]:
        """Train; return for each rank "injected" and "measured"."""
        name = self._scenario.name
        with self._attach() as session:
            codec.injection = self._injection if self._scenario.encode else None
            for _ in range(self._settings.num_steps):
                self._step(session)
            codec.injection = None
        windows = [window for window in self._recorded(session.run_id) if not window.is_settling]
        if not windows:
            raise RuntimeError(f"{name}: the agent recorded no settled window")
        self._add_communication()
        # The last steps of a run may end before the ranks were compared; they say nothing of transfer and wait.
        compared = [window for window in windows if window.seconds.exposed_transfer is not None]
        mine = {
            "injected": self._injected(windows),
            "measured": measured(windows),
            "injected_when_compared": self._injected(compared),
            "measured_when_compared": measured(compared) if compared else None,
        }
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
        return everybody

    def _attach(self) -> gradwire.Session:
        scenario = self._scenario
        plan: dict[str, Any] = {"codec": "none"}
        if scenario.encode:
            plan = {"codec": "int8", "every_bucket": True, "min_elements": 0}
        with contextlib.nullcontext() if scenario.is_steered else without_side_group():
            spool = Path(self._settings.folder)
            return gradwire.attach(self._ddp, optimizer=self._optimizer, run=scenario.name, plan=plan, spool=spool)

    def _step(self, session: gradwire.Session) -> None:
        injection, scenario = self._injection, self._scenario
        injection.step = Truth()
        injection.spend("data_wait", scenario.data_wait)
        loss = self._ddp(self._data).square().mean()
        if dist.get_rank() == 1:
            injection.spend("forward", scenario.straggle)
        loss.backward()
        if scenario.pause:
            with session.pause("evaluation"):
                injection.spend("pause", scenario.pause)
        self._optimizer.step()
        self._optimizer.zero_grad()
        injection.spend("other", scenario.other)
        self._truths.append(injection.step)
        session.step(samples=BATCH)

    def _add_communication(self) -> None:
        """Add what follows from the link, and from when all ranks' buckets were there: clocks are one machine's."""
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, [(truth.first, truth.last) for truth in self._truths])
        scenario, burst = self._scenario, self._settings.burst
        if scenario.encode:
            first, second = self._hops()
        else:
            # The second bucket follows the first without a pause.
            first = self._seconds_on_link(scenario.first_bytes, burst)
            second = self._seconds_on_link(scenario.second_bytes, max(0.0, burst - scenario.first_bytes))
        for truth, ready in zip(self._truths, zip(*everybody, strict=True), strict=True):
            truth.add_exchange(ready, first, second)

    def _hops(self) -> list[float]:
        """Return what the two hops of each bucket's codes take by themselves, on the faster rank.

        A hop is so short that what the link lets pass at once is much of it. So they follow each other here as in a
        step, with the codec's pauses between them.
        """
        scenario = self._scenario
        buckets = [
            torch.zeros(size // 4, dtype=torch.uint8) for size in (scenario.first_bytes, scenario.second_bytes)
        ]
        seconds = []
        for _ in range(HOP_REPEATS):
            dist.barrier()
            time.sleep(scenario.data_wait + scenario.forward + scenario.backward)
            own = torch.tensor([self._hops_of(sent) for sent in buckets], dtype=torch.float64)
            dist.all_reduce(own, dist.ReduceOp.MIN)
            seconds.append(own.tolist())
        return [middle(each) for each in zip(*seconds, strict=True)]

    def _hops_of(self, sent: Tensor) -> float:
        scenario, group = self._scenario, dist.group.WORLD
        assert group is not None
        received, own = torch.empty_like(sent), sent[: len(sent) // 2]
        seconds = 0.0
        for pause, start in (
            (scenario.encode, partial(compat.start_all_to_all, received, sent, group)),
            (scenario.decode, partial(compat.start_all_gather, received, own, group)),
        ):
            time.sleep(pause)
            began = time.perf_counter()
            start().wait()
            seconds += time.perf_counter() - began
        time.sleep(scenario.decode)
        return seconds

    def _seconds_on_link(self, num_bytes: float, burst: float) -> float:
        # Two ranks send as many bytes as an all-reduce averages.
        return max(0.0, num_bytes * FRAME - burst) / self._settings.link

    def _recorded(self, run: str) -> Iterator[StepWindow]:
        """Yield the windows that this rank's agent left in its spool."""
        for folder, facts in find_streams(Path(self._settings.folder) / run):
            if dist.get_rank() in facts.started.node.ranks:
                yield from spooled(folder)

    def _injected(self, windows: Sequence[StepWindow]) -> dict[str, float]:
        """Sum the truth over the steps that the windows speak of."""
        steps = [
            self._truths[step - 1] for window in windows for step in range(window.first_step, window.last_step + 1)
        ]
        return {name: sum(truth.seconds[name] for truth in steps) for name in (*PHASES, "overlapped")}


def measured(windows: Sequence[StepWindow]) -> dict[str, Any]:
    """Sum what windows hold, and find what no window may hold."""
    sums: dict[str, Any] = {}
    for name in ("step", *PHASES, "overlapped", "agent"):
        values = [getattr(window.seconds, NAMES.get(name, name)) for window in windows]
        sums[name] = None if None in values else sum(values)
    return sums | {
        "num_steps": sum(window.num_steps for window in windows),
        "most_of_step": max(sum_of_phases(window) / window.seconds.step for window in windows),
        "least_overlapped": min(window.seconds.overlapped for window in windows),
        "unknown_reason": next((window.unknown_reason for window in windows if window.unknown_reason), ""),
        "has_bare_unknown": any(
            window.seconds.exposed_transfer is None and not window.unknown_reason for window in windows
        ),
    }


def sum_of_phases(window: StepWindow) -> float:
    """Return everything a window books, seconds; transfer and wait as their sum, which is always known."""
    seconds = window.seconds
    booked = [getattr(seconds, NAMES.get(name, name)) for name in PHASES if name not in ("transfer", "wait")]
    return float(sum(booked)) + seconds.exposed_communication


@contextlib.contextmanager
def without_side_group() -> Iterator[None]:
    """Let no agent that is attached here open its side group: it measures, and does not steer."""

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("the ranks could not open a gloo side group (taken away by the benchmark)")

    name = "open_side"
    opening = getattr(wiring, name)
    setattr(wiring, name, refuse)
    try:
        yield
    finally:
        setattr(wiring, name, opening)


def main() -> None:
    socket.sethostname(f"host{os.environ['GROUP_RANK']}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    settings = Settings(**json.loads(sys.argv[1]))
    codec = SlowCodec()
    outcome = {}
    for values in settings.scenarios:
        scenario = Scenario(**values)
        outcome[scenario.name] = Trial(settings, scenario).run(codec)
    if dist.get_rank() == 0:
        print(json.dumps(outcome), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
