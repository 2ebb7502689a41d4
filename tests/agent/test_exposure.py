"""Hand-made exchanges whose exposure is known."""

import pytest
from gradwire.timing.exposure import BucketTrace, expose, own_seconds
from hypothesis import given
from hypothesis import strategies as st


def bucket(index: int, ready: float, done: float, *codec: tuple[float, float, str]) -> BucketTrace:
    return BucketTrace(index=index, ready=ready, done=done, codec=codec)


def test_own_seconds_leaves_queueing_and_codec_out():
    first = bucket(0, 0.0, 4.0, (0.0, 1.0, "encode"))
    # Ready at 1, but its turn came at 4.
    second = bucket(1, 1.0, 9.0, (8.0, 9.0, "decode"))
    assert own_seconds([first, second]) == [3.0, 4.0]


def test_exposure_is_what_follows_backward():
    exposure = expose([bucket(0, 0.0, 4.0), bucket(1, 3.0, 10.0)], end_of_backward=6.0, transfers=[4.0, 6.0])
    assert exposure.transfer == pytest.approx(4.0)
    assert exposure.wait == 0.0
    assert exposure.communication == pytest.approx(4.0)
    assert exposure.overlapped == pytest.approx(6.0)


def test_waiting_for_a_slow_rank_is_not_transfer():
    # The bucket took 10 s here and 2 s on the rank that came last: 8 s of it were waiting.
    exposure = expose([bucket(0, 0.0, 10.0)], end_of_backward=0.0, transfers=[2.0])
    assert exposure.transfer == pytest.approx(2.0)
    assert exposure.wait == pytest.approx(8.0)


def test_waiting_comes_before_moving():
    # Backward ends after the wait is over, so only transfer is exposed.
    exposure = expose([bucket(0, 0.0, 10.0)], end_of_backward=8.5, transfers=[2.0])
    assert exposure.transfer == pytest.approx(1.5)
    assert exposure.wait == pytest.approx(0.0)
    assert exposure.overlapped == pytest.approx(8.5)


def test_codec_work_after_backward_is_exposed_codec():
    exposure = expose(
        [bucket(0, 0.0, 10.0, (0.0, 2.0, "encode"), (9.0, 10.0, "decode"))], end_of_backward=1.0, transfers=[7.0]
    )
    assert exposure.codec == pytest.approx(2.0)
    assert exposure.transfer == pytest.approx(7.0)
    assert exposure.encode == pytest.approx(2.0)
    assert exposure.decode == pytest.approx(1.0)


def test_unknown_durations_leave_the_split_unknown():
    exposure = expose([bucket(0, 0.0, 10.0)], end_of_backward=4.0, transfers=None)
    assert exposure.transfer is None
    assert exposure.wait is None
    assert exposure.communication == pytest.approx(6.0)


def test_nothing_exchanged_is_nothing_exposed():
    assert expose([], 1.0, []).transfer == 0.0
    assert expose([], 1.0, None).transfer is None


@st.composite
def exchanges(draw):
    buckets, now = [], 0.0
    for index in range(draw(st.integers(1, 6))):
        ready = now + draw(st.floats(0, 3))
        begin = ready + draw(st.floats(0, 2))
        end = begin + draw(st.floats(0, 2))
        done = end + draw(st.floats(0, 5))
        buckets.append(bucket(index, ready, done, (begin, end, "encode")))
        now = ready
    end_of_backward = draw(st.floats(0, 30))
    shares = [draw(st.floats(0, 1)) for _ in buckets]
    return buckets, end_of_backward, shares


@given(exchanges())
def test_exposed_parts_fill_the_tail_and_are_never_negative(case):
    buckets, end_of_backward, shares = case
    transfers = [own * share for own, share in zip(own_seconds(buckets), shares, strict=True)]
    exposure = expose(buckets, end_of_backward, transfers)
    tail = max(0.0, max(b.done for b in buckets) - end_of_backward)
    assert min(exposure.transfer, exposure.wait, exposure.codec, exposure.overlapped) >= -1e-9
    assert exposure.transfer + exposure.wait + exposure.codec <= tail + 1e-9
    unknown = expose(buckets, end_of_backward, None)
    # Codec work of one bucket may run while another is on the wire, so the split can only move time to the codec.
    assert unknown.communication + unknown.codec == pytest.approx(
        exposure.transfer + exposure.wait + exposure.codec, abs=1e-9
    )
