"""Made-up trainings: what a step of each costs, and the records that its nodes would report."""

import math
import random
import time
from dataclasses import dataclass
from typing import Any

import msgspec
from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import (
    AttemptStarted,
    LinkFacts,
    NodeFacts,
    PhaseSeconds,
    Points,
    RankSums,
    StepWindow,
)

# Steps in one window: about a second of each training below.
STEPS_PER_WINDOW = 3

# Exposed codec time as a share of the transfer that it shortens.
CODEC_COST = 0.12

# Codecs whose bytes follow from the number of elements alone; these trainings have no tensors with shapes.
_PLAYED = tuple(name for name, spec in CATALOGUE.items() if spec.bits_per_element is not None)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training; seconds are per step and rank, uncompressed."""

    name: str
    hosts: tuple[str, ...] = ("node-01", "node-02")
    ranks_per_node: int = 4
    device: str = "cuda"
    device_name: str = "NVIDIA H100 80GB HBM3"
    backend: str = "nccl"
    optimizer: str = "AdamW"
    gradient_bytes: int = 2_000_000_000
    link_bytes_per_second: float = 25e9
    link_note: str = "200 Gbit/s RoCE"
    start_step: int = 0
    total_steps: int | None = 120_000
    data_wait: float = 0.006
    forward: float = 0.047
    backward: float = 0.105
    update: float = 0.012
    transfer: float = 0.139
    straggler_wait: float = 0.011
    overlapped: float = 0.041
    other: float = 0.004
    samples: int = 8
    tokens: int = 16_384
    loss_start: float = 10.4
    loss_end: float = 2.1
    # Relative loss of accuracy that the codec would cause.
    harm: float = 0.001
    exempts_onebit: bool = True

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts) * self.ranks_per_node

    def started(self, node: int, plan: PlanSpec) -> AttemptStarted:
        """Return the first record of a node's stream."""
        first = node * self.ranks_per_node
        return AttemptStarted(
            at=time.time(),
            run_name=self.name,
            node=NodeFacts(host=self.hosts[node], ranks=tuple(range(first, first + self.ranks_per_node))),
            world_size=self.world_size,
            backend=self.backend,
            device="cpu" if self.device == "cpu" else "cuda",
            device_name=self.device_name,
            link=LinkFacts(
                interface="eth0", nominal_bytes_per_second=self.link_bytes_per_second, note=self.link_note
            ),
            optimizer=self.optimizer,
            num_elements=self.gradient_bytes // 4,
            gradient_bytes=self.gradient_bytes,
            plan=plan,
            start_step=self.start_step,
            total_steps=self.total_steps,
            better={"accuracy": "higher"},
            codecs=_PLAYED,
            codec_memory_bytes={name: 0 if name == "none" else self.gradient_bytes for name in _PLAYED},
            refused_codecs=self._refused(),
        )

    def _refused(self) -> dict[str, str]:
        allowed = CATALOGUE["onebit"].safe_optimizers
        if self.optimizer in allowed:
            return {}
        return {"onebit": f"onebit is known to converge under {', '.join(allowed)}; this is {self.optimizer}"}

    def window(self, first_step: int, node: int, codec: str, epoch: int, *, is_settling: bool) -> StepWindow:
        """Return one window of a node, with the noise of a real machine; the same one every time."""
        num_rank_steps = STEPS_PER_WINDOW * self.ranks_per_node
        ratio = (CATALOGUE[codec].bits_per_element or 32) / 32
        # Each rank sends and receives all shards but its own, twice.
        sent_bytes = 2 * self.gradient_bytes * (self.world_size - 1) / self.world_size
        seconds = self._seconds(first_step, codec, ratio)
        step = seconds.step
        first_rank = node * self.ranks_per_node
        return StepWindow(
            first_step=first_step,
            last_step=first_step + STEPS_PER_WINDOW - 1,
            num_steps=STEPS_PER_WINDOW,
            num_rank_steps=num_rank_steps,
            epoch=epoch,
            codec=codec,
            is_settling=is_settling,
            started_at=time.time(),
            wall_seconds=step * STEPS_PER_WINDOW,
            seconds=_times(seconds, num_rank_steps),
            step_seconds_min=0.97 * step,
            step_seconds_max=1.04 * step,
            logical_bytes=int(sent_bytes * num_rank_steps),
            wire_bytes=int(sent_bytes * ratio * num_rank_steps),
            samples=self.samples * num_rank_steps,
            tokens=self.tokens * num_rank_steps,
            ranks=tuple(
                RankSums(rank=first_rank + index, step_seconds=step * STEPS_PER_WINDOW)
                for index in range(self.ranks_per_node)
            ),
        )

    def _seconds(self, first_step: int, codec: str, ratio: float) -> PhaseSeconds:
        """Return the seconds of one step of one rank."""
        chance = random.Random(f"{self.name} {first_step} {codec}")
        # Windows vary, and so do stretches of them: neighbours on the network come and go.
        busy = random.Random(f"{self.name} {first_step // 150}").gauss(0, 1)
        transfer = self.transfer * (0.03 + 0.97 * ratio) * (1 + 0.035 * chance.gauss(0, 1) + 0.06 * busy)
        codec_seconds = 0.0 if codec == "none" else CODEC_COST * self.transfer
        parts = {
            "data_wait": self.data_wait,
            "forward": self.forward,
            "backward": self.backward * (1 + 0.01 * chance.gauss(0, 1)),
            "exposed_communication": transfer + self.straggler_wait,
            "exposed_codec": codec_seconds,
            "optimizer": self.update,
            "other": self.other,
        }
        return PhaseSeconds(
            step=sum(parts.values()),
            **parts,
            exposed_transfer=transfer,
            straggler_wait=self.straggler_wait,
            overlapped=self.overlapped * ratio,
            encode=0.7 * codec_seconds,
            decode=0.3 * codec_seconds,
            agent=0.0004,
        )

    def losses(self, first_step: int, codec: str) -> Points:
        """Return the loss of a window's steps: a power law with noise."""
        chance = random.Random(f"{self.name} loss {first_step}")
        steps = range(first_step, first_step + STEPS_PER_WINDOW)
        harm = 0.0 if codec == "none" else self.harm / 2
        values = (self._loss(step) * (1 + harm) * (1 + 0.012 * chance.gauss(0, 1)) for step in steps)
        return Points(name="loss", steps=tuple(steps), values=tuple(values))

    def _loss(self, step: int) -> float:
        fallen: float = (1 + step / 40) ** -0.42
        return self.loss_end + (self.loss_start - self.loss_end) * fallen

    def accuracy(self, step: int, codec: str) -> Points:
        """Return an evaluation's accuracy at a step."""
        chance = random.Random(f"accuracy {step} {codec}")
        harm = 0.0 if codec == "none" else self.harm
        value = (0.874 - 0.35 * math.exp(-step / 9000)) * (1 - harm) + 0.0002 * chance.gauss(0, 1)
        return Points(name="accuracy", steps=(step,), values=(value,), is_evaluation=True)


def _times(seconds: PhaseSeconds, count: int) -> PhaseSeconds:
    """Return the sums over so many equal steps."""
    values: dict[str, Any] = msgspec.structs.asdict(seconds)
    return PhaseSeconds(**{name: value and value * count for name, value in values.items()})
