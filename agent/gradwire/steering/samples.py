"""Samples of gradients: how well the codec in use does, and what every codec would do."""

from collections.abc import Callable
from dataclasses import asdict

from gradwire_compression import Exchange, Match
from gradwire_protocol.records import Matched, Points

from gradwire.steering.guard import Guard
from gradwire.steering.rehearsal import Rehearsal

# The metric that says of a step whether all ranks held the same parameters: 1 or 0.
REPLICAS_EQUAL = "gradwire/replicas_equal"

# A sample of the gradient match costs an all-reduce of 64 KB beside the training, every four seconds or longer.
PULSES_BETWEEN = 8


class Samples:
    """When gradients are sampled, the same on every rank, and where what was found goes to.

    Args:
        rehearsal: Of every codec, on rank 0.
        on_sample: Called on any thread.
    """

    def __init__(self, rehearsal: Rehearsal, on_sample: Callable[[Matched | Points], None]) -> None:
        self.rehearsal = rehearsal
        self._on_sample = on_sample
        self._num_pulses = 0
        self._step = 0

    def pulse(self, exchange: Exchange, step: int, codec: str) -> None:
        """Take note of a pulse, inside `begin_sync` of `step`, which uses `codec`."""
        self._num_pulses += 1
        if self._num_pulses % PULSES_BETWEEN == 0 and codec != "none":
            exchange.sample_match()
            self._step = step

    def pass_on(self, match: Match, epoch: int, guard: Guard) -> None:
        """Report a match and show it to the guard; on rank 0, any thread."""
        guard.observe_match(self._step, match.cosine)
        self._on_sample(Matched(**asdict(match) | {"step": self._step, "epoch": epoch}))

    def compared(self, step: int, *, are_equal: bool) -> None:
        """Report that the ranks' parameters of `step` were compared; on rank 0."""
        self._on_sample(Points(name=REPLICAS_EQUAL, steps=(step,), values=(float(are_equal),)))
