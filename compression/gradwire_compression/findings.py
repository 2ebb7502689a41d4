"""What buckets had that was not finite, told as soon as the host knows."""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire_compression.lossy import Outcome
from gradwire_compression.observer import GuardedObserver


@dataclass(frozen=True)
class _Finding:
    # [1 + parameters] bool on the host: whether the mean is finite, then whether each own gradient is not.
    flags: Tensor
    parameters: tuple[str, ...]
    # When the flags are there; None if they are already.
    arrival: torch.cuda.Event | None


class Findings:
    """Passes the flags of averaged buckets on to the observer, in order, without waiting for a device.

    On CPU a bucket's flags are known when it is averaged. From an accelerator they are copied behind the bucket's
    work, and told by the first call that finds them there, usually in the next step.
    """

    def __init__(self, observer: GuardedObserver) -> None:
        self._observer = observer
        self._waiting: deque[_Finding] = deque()

    def add(self, outcome: Outcome) -> None:
        """Take an outcome on the stream that made it, and tell what is known."""
        flags, arrival = torch.cat([outcome.is_clean.view(1), outcome.is_bad]), None
        if flags.device.type == "cuda":
            host = torch.empty(flags.shape, dtype=torch.bool, pin_memory=True)
            flags = host.copy_(flags, non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
        self._waiting.append(_Finding(flags, outcome.parameters, arrival))
        self.tell()

    def tell(self, *, waits: bool = False) -> None:
        """Tell what has arrived; all of it if `waits`."""
        while self._waiting:
            arrival = self._waiting[0].arrival
            if arrival is not None and not arrival.query():
                if not waits:
                    return
                arrival.synchronize()
            self._tell(self._waiting.popleft())

    def _tell(self, finding: _Finding) -> None:
        is_clean, *are_bad = finding.flags.tolist()
        names = [name for name, is_bad in zip(finding.parameters, are_bad, strict=True) if is_bad]
        if names:
            self._observer.nonfinite(tuple(names))
        if not is_clean:
            self._observer.result_nonfinite()
