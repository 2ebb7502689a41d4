"""The rehearsal: every codec on some of this model's gradients, before anyone turns it on.

One rank takes a copy of a part of one bucket and tries one codec on it after a step, then another after a later
one, and so on; then comes another bucket. Nothing is sent. What it takes is a pause to all timing, and keeps to a
share of its own.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from gradwire_compression import PlanError, registry
from gradwire_compression.buckets import BucketView
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.costs import Codec
from gradwire_compression.rehearse import Sample, Trial, norm_shares, rehearse, take_sample
from gradwire_protocol.records import Rehearsed
from torch import Tensor

from gradwire.timing.clock import Clock, Stamp
from gradwire.timing.phases import Phases

log = logging.getLogger("gradwire")

# Of the time since attach.
SHARE = 0.001
# The first steps are no picture of the training.
_FIRST_STEP = 10


@dataclass(frozen=True)
class _Found:
    """A trial on its way to the host."""

    step: int
    codec: str
    bucket: int
    trial: Trial
    # [3 + 3] float64 on the host once the device has come so far: the sums, then the shares of the norm.
    numbers: Tensor


class Rehearsal:
    """Tries the codecs in turn; used by the training thread, but on ranks other than 0, where it does nothing.

    Args:
        clock: Of the session.
        device: Of the gradients.
        model_elements: That codecs compress, of the whole model.
        later: Calls a function on another thread once the device has passed these stamps.
        on_result: Called with each codec's figures; None for a rank that does nothing.
    """

    def __init__(
        self,
        clock: Clock,
        device: torch.device,
        model_elements: int,
        later: Callable[[list[Stamp], Callable[[], None]], None],
        on_result: Callable[[Rehearsed], None] | None,
    ) -> None:
        self._clock, self._device, self._model_elements = clock, device, model_elements
        self._later = later
        self._on_result = on_result
        self._began = time.perf_counter()
        self._spent_seconds = 0.0
        self._codecs: dict[str, Codec] = {}
        self._left: list[str] = []
        # The bucket that the sample is of, and the next one.
        self._sampled = self._bucket = self._num_buckets = 0
        self._sample: Sample | None = None
        self._shares: Tensor | None = None
        self._found: _Found | None = None
        if on_result is not None:
            # Kernels for an accelerator are compiled, which takes seconds.
            threading.Thread(target=self._prepare, name="gradwire-rehearsal", daemon=True).start()

    def look(self, view: BucketView) -> None:
        """See a bucket before it is averaged, and take a sample of it if it is its turn."""
        if view.is_last:
            self._num_buckets = view.index + 1
        if self._sample is None and view.index == self._bucket and self._codecs and self._is_allowed():
            began = time.perf_counter()
            with torch.no_grad():
                self._sample = take_sample(view)
            self._left = list(self._codecs)
            self._sampled, self._bucket = self._bucket, (self._bucket + 1) % max(1, self._num_buckets)
            self._spent_seconds += time.perf_counter() - began

    def run(self, phases: Phases, step: int) -> None:
        """Try the next codec, if there is time for it; between two steps, outside of both."""
        if self._on_result is None:
            return
        if self._sample is None or self._found is not None or step < _FIRST_STEP or phases.is_paused:
            return
        if not self._left:
            self._sample = self._shares = None
        elif self._is_allowed():
            began = time.perf_counter()
            phases.pause()
            try:
                with torch.no_grad():
                    self._try(self._left.pop(0), self._sample, step)
            finally:
                phases.resume()
                phases.begin("data_wait")
                self._spent_seconds += time.perf_counter() - began

    def _try(self, name: str, sample: Sample, step: int) -> None:
        if self._shares is None:
            self._shares = norm_shares(sample)
        trial = rehearse(self._codecs[name], sample, self._clock.stamp)
        numbers = torch.cat([trial.sums, self._shares.double()])
        if numbers.is_cuda:
            numbers = torch.empty(6, dtype=torch.float64, pin_memory=True).copy_(numbers, non_blocking=True)
        found = self._found = _Found(step, name, self._sampled, trial, numbers)
        # The training thread asks no device for the time.
        self._later([self._clock.stamp()], lambda: self._tell(found))

    def _tell(self, found: _Found) -> None:
        self._found = None
        product, exact, got, *shares = found.numbers.tolist()
        if not math.isfinite(product + exact + got) or exact <= 0 or self._on_result is None:
            return
        encode, decode = self._seconds(found.trial.encode), self._seconds(found.trial.decode)
        self._on_result(
            Rehearsed(
                step=found.step,
                codec=found.codec,
                bucket=found.bucket,
                cosine=product / math.sqrt(exact * got) if got > 0 else 0.0,
                relative_error=math.sqrt(max(0.0, got - 2 * product + exact) / exact),
                encode_seconds=encode,
                decode_seconds=decode,
                num_elements=found.trial.num_elements,
                model_elements=self._model_elements,
                norm_shares=tuple(shares),
            )
        )

    def _seconds(self, interval: Sequence[object]) -> float:
        return max(0.0, self._clock.seconds(interval[1]) - self._clock.seconds(interval[0]))

    def _is_allowed(self) -> bool:
        return self._spent_seconds <= SHARE * (time.perf_counter() - self._began)

    def _prepare(self) -> None:
        try:
            lossy = [name for name in registry.available() if registry.facts(name).is_lossy]
            codecs = dict(filter(None, map(self._made, lossy)))
        except Exception:
            log.exception("gradwire: codecs cannot be rehearsed; training is not affected")
            return
        self._codecs = codecs

    def _made(self, name: str) -> tuple[str, Codec] | None:
        parameters = {entry.name: entry.default for entry in registry.facts(name).parameters}
        try:
            codec = registry.make(name, parameters, self._device)
        except PlanError:
            # It has no kernels for this device.
            return None
        if self._device.type == "cuda" and not isinstance(codec, LowRankCodec):
            with torch.cuda.device(self._device):
                codec.warm_up(self._device, [torch.float32, torch.bfloat16, torch.float16])
        return name, codec
