"""What is known of a codec without running it."""

from dataclasses import dataclass
from typing import Literal

Number = int | float


@dataclass(frozen=True)
class ParameterFacts:
    """One plain parameter of a codec: its range (both ends included), its default and what more of it does."""

    name: str
    kind: Literal["int", "float"]
    default: Number
    low: Number
    high: Number
    direction: str
    # Values to offer, each with the share of the elements that it sends.
    presets: tuple[tuple[Number, float], ...] = ()


@dataclass(frozen=True)
class CodecFacts:
    """One codec as plans see it; bits are per element of a full block, scales included, padding excluded."""

    name: str
    # None where it depends on the shapes of the model's tensors.
    bits_per_element: float | None
    is_lossy: bool
    has_residual: bool
    parameters: tuple[ParameterFacts, ...] = ()
    # Optimizer classes under which the codec is accepted; empty means all of them.
    safe_optimizers: tuple[str, ...] = ()
    safe_alternative: str = ""


def block_parameter(default: int) -> ParameterFacts:
    """Return the facts of a block size, elements that share one scale."""
    return ParameterFacts("block", "int", default, 64, 4096, "larger block, fewer scales")
