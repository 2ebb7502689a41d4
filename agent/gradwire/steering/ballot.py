"""The ballot: rank 0's directive goes to every rank, all prepare it, and all switch or none does."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gradwire_protocol import coding, limits
from gradwire_protocol.messages import Directive
from gradwire_protocol.records import Refusal

from gradwire.steering.side import MIN, SUM, Side

_MAX_REASON_BYTES = 480
_MAX_HOST_BYTES = 24


@dataclass(frozen=True)
class Ballot:
    """Small collectives on the side, called by all ranks in the same hook."""

    side: Side
    host: str

    def share(self, directive: Directive | None) -> Directive:
        """Return rank 0's directive on every rank.

        Args:
            directive: The newest directive on rank 0, ignored elsewhere; at most `limits.MAX_PLAN_BYTES` as JSON.
        """
        buffer = torch.zeros(limits.MAX_PLAN_BYTES, dtype=torch.uint8)
        if self.side.rank == 0:
            assert directive is not None, "rank 0 announced a revision that it does not hold"
            body = coding.encode(directive)
            buffer[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        self.side.broadcast(buffer)
        return coding.decode(bytes(buffer.tolist()).rstrip(b"\0"), Directive)

    def vote(self, refusal: str | None) -> tuple[Refusal, ...]:
        """Return the refusals of all ranks, the same on every rank; empty means that all agreed."""
        agrees = torch.tensor([0.0 if refusal else 1.0], dtype=torch.float64)
        self.side.all_reduce(agrees, MIN)
        if agrees.item() == 1.0:
            return ()
        own = _pack(refusal or "", _MAX_REASON_BYTES) + _pack(self.host if refusal else "", _MAX_HOST_BYTES)
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        gathered = self.side.gather(mine)
        return tuple(
            Refusal(rank=rank, host=_unpack(part[_MAX_REASON_BYTES:]), reason=_unpack(part[:_MAX_REASON_BYTES]))
            for rank, part in enumerate(gathered)
            if part.any()
        )

    def total_norm(self, norm: float) -> float:
        """Return the norm over all ranks of vectors that have `norm` on this rank."""
        squares = torch.tensor([norm * norm], dtype=torch.float64)
        self.side.all_reduce(squares, SUM)
        return float(squares.sqrt().item())


def fits(directive: Directive) -> bool:
    """Say whether the directive fits the one broadcast."""
    return len(coding.encode(directive)) <= limits.MAX_PLAN_BYTES


def try_preparing(prepare: Callable[[], object]) -> tuple[object | None, str | None]:
    """Return what `prepare` made, or the sentence why it could not."""
    try:
        return prepare(), None
    except Exception as error:
        return None, f"{error}" or type(error).__name__


def _pack(text: str, size: int) -> bytes:
    body = text.encode()[:size]
    return body + bytes(size - len(body))


def _unpack(part: torch.Tensor) -> str:
    return bytes(part.tolist()).rstrip(b"\0").decode(errors="ignore")
