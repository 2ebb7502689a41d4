import pytest
from gradwire_server.runs import loop
from gradwire_server.series.sums import StepSums
from gradwire_server.verdict import reasons
from hypothesis import given
from hypothesis import strategies as st

# One block of 100 rank steps, 100 ms of training each: 60 compute, 5 codec, 20 send, 5 update, 10 data and other.
STEP = StepSums(
    first_step=0,
    last_step=49,
    num_steps=50,
    num_rank_steps=100,
    step=12.0,
    pause=2.0,
    data_wait=0.7,
    forward=2.0,
    backward=4.0,
    exposed_communication=2.0,
    exposed_codec=0.5,
    optimizer=0.5,
    other=0.3,
    overlapped=1.0,
    encode=0.9,
    decode=0.3,
    agent=0.01,
    exposed_transfer=1.5,
    straggler_wait=0.5,
    known_step=12.0,
    known_pause=2.0,
    known_rank_steps=100,
    logical_bytes=400_000_000,
    wire_bytes=250_000_000,
    samples=3200,
    tokens=100_000,
)


def test_loop_has_milliseconds_and_shares_of_training_time() -> None:
    stages = {stage.name: stage for stage in loop.loop([STEP])}
    assert list(stages) == ["compute", "compress", "send", "decompress", "update"]
    seconds = {name: stage.seconds for name, stage in stages.items()}
    # Exposed codec time is split three to one, as encoding is to decoding.
    expected = {"compute": 0.060, "compress": 0.00375, "send": 0.020, "decompress": 0.00125, "update": 0.005}
    assert seconds == pytest.approx(expected)
    assert {name: stage.share for name, stage in stages.items()} == pytest.approx(
        {name: value / 0.100 for name, value in expected.items()}
    )
    assert [name for name, stage in stages.items() if stage.is_largest] == ["compute"]


def test_loop_without_steps_is_unknown_not_zero() -> None:
    stages = loop.loop([])
    assert [(stage.seconds, stage.share, stage.is_largest) for stage in stages] == [(None, None, False)] * 5
    assert loop.step_seconds([]).reason == reasons.NO_STEPS


def test_ratios_beside_the_loop() -> None:
    assert loop.step_seconds([STEP]).value == pytest.approx(0.100)
    assert loop.communication_compute_ratio([STEP]).value == pytest.approx(3.0 / 6.0)
    assert loop.raw_share([STEP]).value == pytest.approx(0.30)
    assert loop.exposed_share([STEP], "").value == pytest.approx(0.15)
    assert loop.agent_cost([STEP]).value == pytest.approx(0.001)


def test_throughput_is_of_all_ranks_in_training_time() -> None:
    rate, unit = loop.throughput([STEP], world_size=2)
    # 100,000 tokens of two ranks in 10 rank-seconds, which are 5 seconds of training.
    assert (rate.value, unit) == (pytest.approx(20_000), "tokens")
    untold = StepSums(first_step=0, last_step=9, num_steps=10, num_rank_steps=20, step=2.0, samples=640)
    rate, unit = loop.throughput([untold], world_size=2)
    assert (rate.value, unit) == (pytest.approx(640), "samples")
    bare = StepSums(first_step=0, last_step=9, num_steps=10, num_rank_steps=20, step=2.0)
    rate, unit = loop.throughput([bare], world_size=2)
    assert (rate.value, unit) == (pytest.approx(10), "steps")


def test_wire_speed_leaves_out_waiting_for_slow_ranks() -> None:
    assert loop.wire_bytes_per_second([STEP]).value == pytest.approx(250e6 / 2.5)


def test_unknown_transfer_keeps_its_reason() -> None:
    unknown = StepSums(
        first_step=0, last_step=0, num_steps=1, num_rank_steps=2, step=1.0, exposed_communication=0.5
    )
    share = loop.exposed_share([unknown], "the pulse was late")
    assert (share.value, share.reason) == (None, "the pulse was late")
    assert loop.raw_share([unknown]).value == pytest.approx(0.5)


Part = st.floats(0, 100)


@given(st.lists(Part, min_size=9, max_size=9), st.integers(1, 10_000), st.floats(0, 100), st.booleans())
def test_shares_never_add_up_to_more_than_one(
    parts: list[float], rank_steps: int, pause: float, is_rounded: bool
) -> None:
    compute, back, exposed, codec, optimizer, data, other, encode, decode = parts
    whole = compute + back + exposed + codec + optimizer + data + other
    sums = StepSums(
        first_step=0,
        last_step=1,
        num_steps=1,
        num_rank_steps=rank_steps,
        # Clocks that round down make the whole a little less than its parts.
        step=whole * (0.999 if is_rounded else 1.0) + pause,
        pause=pause,
        forward=compute,
        backward=back,
        exposed_communication=exposed,
        exposed_codec=codec,
        optimizer=optimizer,
        data_wait=data,
        other=other,
        encode=encode,
        decode=decode,
    )
    stages = loop.loop([sums])
    shares = [stage.share for stage in stages if stage.share is not None]
    assert sum(shares) <= 1 + 1e-9
    assert all(share >= 0 for share in shares)
    assert sum(stage.is_largest for stage in stages) <= 1
