import pytest
import torch
from gradwire_compression.buckets import pack
from gradwire_compression.flush import Flush

SLOTS = pack([("a", 3), ("b", 2), ("c", 4)])


def _flush(agreed=None, **owed):
    return Flush(dict(owed), lambda norm: norm if agreed is None else agreed)


def _step(flush, gradient, spoil=None):
    """One step on one rank; returns the averaged bucket."""
    flush.begin_step()
    if flush.is_done:
        return gradient.clone()
    bucket = gradient.clone()
    flush.add(bucket, SLOTS)
    if spoil is not None:
        bucket[spoil] = torch.nan
    flush.settle(bucket, SLOTS)
    return bucket


def test_flush_measures_one_step_and_then_adds_equal_shares():
    gradient = torch.ones(9)
    flush = _flush(b=torch.full((2,), 5.0))
    seen = [_step(flush, gradient)[3:5] for _ in range(8)]
    # The residual's norm is 7.07, the measured gradient's 1.41: five shares.
    assert [round(float(part[0]), 5) for part in seen] == [1, 2, 2, 2, 2, 2, 1, 1]
    assert flush.is_done
    assert flush.num_steps == 6
    assert flush.norm == pytest.approx(50**0.5)


def test_flush_touches_only_what_is_owed():
    flush = _flush(b=torch.ones(2))
    assert flush.touches(SLOTS)
    assert not flush.touches(SLOTS[2:])
    for _ in range(3):
        bucket = _step(flush, torch.ones(9))
        assert (bucket[:3] == 1).all()
        assert (bucket[5:] == 1).all()


def test_flush_adds_nothing_twice_and_loses_nothing_when_results_are_not_finite():
    flush = _flush(b=torch.full((2,), 4.0))
    gradient = torch.ones(9)
    total = 0.0
    for step in range(1, 12):
        spoil = 3 if step in (3, 5, 6) else None
        bucket = _step(flush, gradient, spoil)
        if spoil is None:
            total += float(bucket[4] - 1)
    assert flush.is_done
    assert total == pytest.approx(4.0)


def test_flush_waits_for_a_gradient_to_compare_with():
    flush = _flush(b=torch.ones(2))
    for _ in range(3):
        assert not _step(flush, torch.zeros(9)).any()
    assert not flush.is_done
    _step(flush, torch.ones(9))
    assert float(_step(flush, torch.ones(9))[3]) == 2.0


def test_flush_of_nothing_ends_at_once():
    flush = _flush(b=torch.zeros(2))
    flush.begin_step()
    assert flush.is_done
    assert flush.num_steps == 0


def test_flush_goes_by_the_norm_that_all_ranks_agree_on():
    flush = _flush(agreed=10 * 2**0.5, b=torch.zeros(2))
    _step(flush, torch.ones(9))
    for _ in range(10):
        assert not flush.is_done
        _step(flush, torch.ones(9))
    flush.begin_step()
    assert flush.is_done
