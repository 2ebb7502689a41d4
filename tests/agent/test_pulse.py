"""The minimum over ranks' facts says what they all know."""

import math

import pytest
import torch
from gradwire.steering.pulse import (
    GUARD_ROLLBACK,
    LOCAL_ROLLBACK,
    MAX_BUCKETS,
    Agreement,
    Facts,
    decode,
    encode,
)


def agree(*facts: Facts) -> Agreement:
    return decode(torch.stack([encode(fact) for fact in facts]).min(dim=0).values)


LEADER = Facts(epoch=2, plan_hash=2**47 + 1, layout_hash=5, sync=9, interval=4.0)
FOLLOWER = Facts(epoch=2, plan_hash=2**47 + 1, layout_hash=5, sync=9)


def test_equal_ranks_agree():
    agreement = agree(LEADER, FOLLOWER)
    assert agreement.has_equal_plans
    assert agreement.has_equal_layouts
    assert agreement.interval == 4
    assert agreement.rollback_rank == -1
    assert not agreement.is_stopping


@pytest.mark.parametrize("other", [Facts(epoch=3, plan_hash=2**47 + 1), Facts(epoch=2, plan_hash=2**47)])
def test_different_epochs_or_plans_are_seen(other):
    assert not agree(LEADER, other).has_equal_plans


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_the_largest_revision_and_the_strongest_rollback_win(ranks):
    weaker, stronger = ranks
    agreement = agree(
        Facts(newest_revision=7, rollback=LOCAL_ROLLBACK, rollback_rank=weaker),
        Facts(rollback=GUARD_ROLLBACK, rollback_rank=stronger),
    )
    assert agreement.newest_revision == 7
    assert agreement.rollback == GUARD_ROLLBACK
    assert agreement.rollback_rank == stronger


def test_one_flag_is_enough():
    assert agree(FOLLOWER, Facts(is_stopping=True)).is_stopping
    assert agree(FOLLOWER, Facts(closes_window=True)).closes_window


def test_least_durations_are_taken_bucket_by_bucket():
    agreement = agree(
        Facts(durations_sync=3, durations=(0.5, 0.1)),
        Facts(durations_sync=3, durations=(0.2, 0.4)),
    )
    assert agreement.durations_sync == 3
    assert agreement.least_durations == (0.2, 0.1)


@pytest.mark.parametrize(
    "other",
    [
        Facts(durations_sync=4, durations=(0.2, 0.4)),
        Facts(durations_sync=3, durations=(0.2,)),
        Facts(durations_sync=3, durations=()),
        Facts(durations_sync=3, durations=(0.2, math.nan)),
    ],
    ids=["other exchange", "other buckets", "not ready", "unknown"],
)
def test_durations_that_cannot_be_compared_are_unknown(other):
    assert agree(Facts(durations_sync=3, durations=(0.5, 0.1)), other).least_durations is None


def test_more_buckets_than_fit_are_unknown_not_cut():
    many = tuple([0.1] * (MAX_BUCKETS + 1))
    facts = Facts(durations_sync=3, durations=many)
    assert agree(facts, facts).least_durations is None


def test_no_entry_is_ever_nan():
    entries = encode(Facts(durations_sync=1, durations=(math.nan, math.inf, -math.inf)))
    assert not entries.isnan().any()
    assert not (entries == -math.inf).any()


@pytest.mark.parametrize(
    ("checksums", "expected"),
    [
        ((5, 5), True),
        ((5, 6), False),
        ((0, 0), True),
        ((2**48 - 1, 0), False),
        ((5, None), None),
        ((None, None), None),
    ],
)
def test_replicas_are_compared_only_where_all_ranks_know_theirs(checksums, expected):
    assert agree(*(Facts(checksum=checksum) for checksum in checksums)).has_equal_replicas is expected
