"""The formula that the pages show: what a share, a wire ratio and a codec's cost make of the speed.

Shares and costs are parts of the uncompressed step, 0 to 1.
"""

import math

# Share of the time outside communication that a codec is assumed to cost until it is measured.
ASSUMED_CODEC_COST = 0.05


def speedup(share: float, wire_ratio: float, codec_cost: float) -> float:
    """Return how many times as fast a step becomes, at least.

    Args:
        share: Exposed transfer share of the step.
        wire_ratio: Bytes before compression over bytes sent, against the dtype that the model really sends.
        codec_cost: What encoding and decoding add, as a share of the step.
    """
    return 1 / (1 - share * (1 - 1 / wire_ratio) + codec_cost)


def assumed_codec_cost(share: float) -> float:
    """Return the codec cost to assume before any measurement: 5 % of the time outside communication."""
    return ASSUMED_CODEC_COST * (1 - share)


def break_even_share(wire_ratio: float) -> float:
    """Return the share at which the assumed codec cost eats up the saving.

    From 1 = 1 - s (1 - 1/r) + a (1 - s) follows s = a / (a + 1 - 1/r).
    """
    saved = 1 - 1 / wire_ratio
    return ASSUMED_CODEC_COST / (ASSUMED_CODEC_COST + saved)


def time_saved(speed: float) -> float:
    """Return the share of time saved at `speed` times the speed: 1.25 saves 0.2; negative where it is slower."""
    return 1 - 1 / speed


def cost(hours: float, price_per_hour: float, speed: float) -> float:
    """Return the money that `speed` times the speed saves of `hours` at `price_per_hour` of the whole cluster."""
    return hours * price_per_hour * time_saved(speed)


def wire_ratio(gradient_bytes: int, num_elements: int, bits_per_element: float) -> float:
    """Return bytes before compression over bytes sent, for full blocks.

    Args:
        gradient_bytes: Bytes that one uncompressed exchange averages, in the dtype of the gradients.
        num_elements: Elements of that exchange; 0 where unknown, which is taken as float32.
        bits_per_element: Of the codec.
    """
    bits = 8 * gradient_bytes / num_elements if num_elements and gradient_bytes else 32.0
    return bits / bits_per_element


def steps_to_decide(num_steps: int, value: float, half_width: float, line: float) -> int | None:
    """Return how many more steps bring the interval off the line, if the value stays where it is.

    The width falls with the square root of the number of steps. None where the value lies on the line.
    """
    distance = abs(value - line)
    if distance <= 0:
        return None
    return max(1, math.ceil(num_steps * ((half_width / distance) ** 2 - 1)))
