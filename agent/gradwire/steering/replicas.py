"""Replicas: whether all ranks still hold the same parameters, bit for bit, and if not, which ones differ."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gradwire_protocol.records import Event
from torch import Tensor

from gradwire.steering.checksums import checksums, fold
from gradwire.steering.side import MAX, MIN, Side

log = logging.getLogger("gradwire")

# Every so many pulses, hence exchanges where steps take 0.5 s or more, the parameters are read once: 0.06 % of the
# time on a CPU core that needs 0.2 s for a step of 6 million parameters, less where more is computed for each.
PULSES_BETWEEN = 8

# Parameters and ranks that an event names; the others are counted.
_MAX_NAMES = 5


@dataclass(frozen=True)
class Differences:
    """Parameters that the ranks hold different values of, the first of them in the model's order first."""

    # Step in whose backward pass they were read.
    step: int
    parameters: tuple[str, ...]
    # Ranks whose value of the first parameter is not the most common one; all ranks where none is.
    ranks: tuple[int, ...]

    def event(self) -> Event:
        """Return the line for the run's history."""
        names = _listed(self.parameters)
        return Event(
            at=time.time(),
            step=self.step,
            kind="replicas_differ",
            message=f"ranks differ: {names} (the first of them on ranks {_listed(self.ranks)})",
            level="error",
            data={
                "parameter": self.parameters[0],
                "num_parameters": len(self.parameters),
                "parameters": names,
                "num_ranks": len(self.ranks),
                "ranks": ",".join(map(str, self.ranks[:_MAX_NAMES])),
            },
        )


class _Snapshot:
    """Checksums of all parameters at one step, on their way to the host."""

    def __init__(self, step: int, numbers: Sequence[Tensor]) -> None:
        self.step = step
        self._numbers = [_to_host(part) for part in numbers]
        self._event: torch.cuda.Event | None = None
        if any(part.is_cuda for part in numbers):
            self._event = torch.cuda.Event()
            self._event.record()
        self._checksum: int | None = None

    @property
    def numbers(self) -> Tensor:
        """The checksum of each parameter, [n] int64; only once `checksum` is known."""
        return torch.cat(self._numbers)

    @property
    def checksum(self) -> int | None:
        """One number for all, None while the device is still at it."""
        if self._checksum is None and (self._event is None or self._event.query()):
            self._checksum = fold(self.numbers)
        return self._checksum


class Replicas:
    """Reads this rank's parameters now and then, and finds those that differ when the pulse says that some do.

    Args:
        named_parameters: All that the ranks are meant to hold alike, the same on every rank, frozen ones included:
            those are thawed sometimes, and then nobody averages their gradients.
        side: For the comparison, None if there is no pulse.
    """

    def __init__(self, named_parameters: Sequence[tuple[str, Tensor]], side: Side | None) -> None:
        devices: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for name, parameter in named_parameters:
            devices.setdefault(parameter.device, []).append((name, parameter))
        self._devices = [[parameter for _, parameter in entries] for entries in devices.values()]
        self._names = [name for entries in devices.values() for name, _ in entries]
        self._side = side
        self._num_pulses = 0
        self._snapshot: _Snapshot | None = None
        self._is_broken = False
        # What differed when the parameters were compared last.
        self._told: tuple[str, ...] = ()
        # Step whose parameters were compared last, 0 before.
        self.compared_step = 0

    def checksum(self, step: int, *, is_training: bool) -> int | None:
        """Return what this pulse says of the parameters, None for unknown; called once for each pulse.

        Never raises, and never waits for a device: what was read travels with the pulses after it.

        Args:
            step: In whose backward pass the pulse is sent.
            is_training: False on a rank that only takes part in others' exchanges: its parameters stand still.
        """
        try:
            checksum = self._snapshot.checksum if self._snapshot is not None else None
            self._num_pulses += 1
            if self._num_pulses % PULSES_BETWEEN == 0:
                self._snapshot = self._read(step) if is_training and not self._is_broken else None
        except Exception:
            self._snapshot, self._is_broken = None, True
            log.exception("gradwire: the parameters could not be read, so that they are not compared any more")
            return None
        return checksum

    def settle(self, are_equal: bool) -> Event | None:
        """Return the event if there is news of the parameters last read; called on all ranks once all told of them.

        There is none where they are as equal, or differ in the same ones, as last time.

        Cost: three small collectives where they differ, otherwise none.
        """
        assert self._snapshot is not None, "all ranks told what they have read"
        assert self._side is not None, "there is a pulse"
        snapshot, self._snapshot = self._snapshot, None
        self.compared_step = snapshot.step
        before, self._told = self._told, ()
        if are_equal:
            return _agreeing(snapshot.step) if before else None
        found = _find(self._names, snapshot, self._side)
        self._told = found.parameters
        return found.event() if found.parameters != before else None

    def _read(self, step: int) -> _Snapshot | None:
        if not self._devices:
            return None
        return _Snapshot(step, [checksums(parameters) for parameters in self._devices])


def _find(names: Sequence[str], snapshot: _Snapshot, side: Side) -> Differences:
    numbers = snapshot.numbers
    least, largest = numbers.clone(), numbers.clone()
    side.all_reduce(least, MIN)
    side.all_reduce(largest, MAX)
    places = (least != largest).nonzero().flatten().tolist()
    assert places, "the ranks' checksums differ and those of their parameters do not"
    own = numbers[places[0] : places[0] + 1]
    values = [int(value) for value in side.gather(own)]
    return Differences(snapshot.step, tuple(names[place] for place in places), _odd_ones(values))


def _odd_ones(values: Sequence[int]) -> tuple[int, ...]:
    """Return the places of the values that are not the most common one; all places where none is."""
    (common, count), *others = Counter(values).most_common(2)
    is_tie = any(other == count for _, other in others)
    return tuple(place for place, value in enumerate(values) if is_tie or value != common)


def _agreeing(step: int) -> Event:
    return Event(
        at=time.time(), step=step, kind="replicas_agree", message="all ranks hold the same parameters again"
    )


def _listed(entries: Sequence[object]) -> str:
    text = ", ".join(map(str, entries[:_MAX_NAMES]))
    left = len(entries) - _MAX_NAMES
    return f"{text} and {left} more" if left > 0 else text


def _to_host(numbers: Tensor) -> Tensor:
    if not numbers.is_cuda:
        return numbers
    return torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
