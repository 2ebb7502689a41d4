import pytest
import torch
from gradwire_compression.collectives.power import AgreedPower


def _powers(world_size):
    return [AgreedPower({}, ["weight"], torch.device("cpu")) for _ in range(world_size)]


def _exchange(powers, magnitudes):
    """One exchange: all ranks read the sum of what they write; returns the exponent that all of them hold."""
    total = torch.zeros(len(powers), dtype=torch.float16)
    for rank, (power, magnitude) in enumerate(zip(powers, magnitudes, strict=True)):
        slots = torch.full((len(powers),), torch.nan, dtype=torch.float16)
        power.write(slots, rank, torch.tensor([magnitude]))
        total += slots
    for power in powers:
        power.read(total)
    (exponent,) = {int(power.exponent) for power in powers}
    return exponent


@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-8, 1.0, 4096.0, 65504.0, 70000.0, 3.4e38])
def test_largest_magnitude_of_all_ranks_has_eightfold_headroom(magnitude):
    exponent = _exchange(_powers(3), [magnitude / 1000, magnitude, 0.0])
    scaled = magnitude * 2.0**exponent
    assert scaled < 65504 / 7.99
    assert scaled >= 4096 or exponent == 100


def test_exponent_is_zero_until_something_is_known_and_then_stays():
    powers = _powers(2)
    assert _exchange(powers, [0.0, 0.0]) == 0
    assert _exchange(powers, [1.0, 0.0]) == 12
    assert _exchange(powers, [0.0, 0.0]) == 12


def test_exponent_falls_at_once_and_rises_by_one_an_exchange():
    powers = _powers(2)
    assert _exchange(powers, [1.0, 1.0]) == 12
    assert [_exchange(powers, [1e-6, 1e-7]) for _ in range(3)] == [13, 14, 15]
    assert _exchange(powers, [1e-6, 1000.0]) == 3
