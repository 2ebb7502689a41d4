from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.collectives.two_phase import TwoPhase
from gradwire_compression.scratch import Scratch

from bench import model, scaling, scaling_rank
from bench.model import ALL_GATHER, TWO_PHASE, CodecCost, Link, TwoPhaseSize
from bench.scaling import Predictor

NUM_ROWS = 64
LINK = Link(bytes_per_second=100.0, latency_seconds=0.5)


def printed(world_size: int, slower: float = 1.0) -> dict[str, Any]:
    """What ranks would print that behave as the model says."""
    cost, fixed = CodecCost(0.01, 0.005), {TWO_PHASE: 2e-3, ALL_GATHER: 1e-3}
    names = [f"int8 {kind}" for kind in fixed]
    predictor = Predictor(
        NUM_ROWS, Link(1e8, 1e-4), dict.fromkeys(names, cost), fixed, {"int8": 66_560}, num_cores=2
    )
    schemes = {}
    for name in ("none", *names):
        num_bytes, seconds = predictor.predict(name, world_size, is_one_machine=True)
        # Of two payloads, or of one with the owner's work: another and half an encode.
        decode = 0.01 if name.endswith(ALL_GATHER) else 0.015
        schemes[name] = {
            "seconds": [2 * slower * seconds, slower * seconds, 3 * slower * seconds],
            "sent_bytes": [num_bytes] * 3,
            "encode_seconds": 0.01,
            "decode_seconds": decode,
        }
    return {
        "schemes": schemes,
        "payload_bytes": {"int8": 66_560},
        "fixed_seconds": fixed,
        "latency_seconds": 1e-4,
    }


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone: how a vector is cut depends on the backend."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("codec", list(scaling_rank.scaled_codecs()))
def test_predicted_bytes_are_those_of_the_exchange(codec: str, world_size: int, group: dist.ProcessGroup) -> None:
    made = scaling_rank.scaled_codecs()[codec]
    assert isinstance(made, ScaledCodec)
    slots = (Slot("vector", 0, NUM_ROWS * scaling_rank.COLUMNS),)
    real = TwoPhase(slots, made, group, 0, world_size, Scratch(scaling_rank.CPU), scaling_rank.CPU)
    size = TwoPhaseSize(**scaling_rank.part_sizes(made, NUM_ROWS, world_size))
    assert model.two_phase_bytes(size, world_size) == real.wire_bytes


def test_all_gather_grows_with_the_ranks_and_two_phases_hardly_do() -> None:
    assert model.all_gather_bytes(1000, 9) == 8000
    assert model.exact_bytes(1000, 4) == 1500
    assert model.two_phase_bytes(TwoPhaseSize(2, 100), 5) == 1600


def test_work_hides_behind_the_wire_but_for_the_first_part_and_the_last() -> None:
    size = TwoPhaseSize(num_parts=4, shard_bytes=100)
    # 800 bytes at 100 a second and 8 messages of half a second; 4 + (2 + 2) of work, a quarter of it not hidden;
    # then all is decoded.
    assert model.two_phase_seconds(LINK, CodecCost(4.0, 2.0), size, 2) == pytest.approx(12 + 2 + 2)
    # Two turns make the work 16, more than the 12 of the wire, of which a quarter is not hidden now.
    assert model.two_phase_seconds(LINK, CodecCost(4.0, 2.0).times(2), size, 2) == pytest.approx(16 + 3 + 4)


def test_times_of_the_other_schemes() -> None:
    assert model.all_gather_seconds(LINK, CodecCost(8.0, 4.0), 100, 3) == pytest.approx(2 + 1 + 8 + 12)
    assert model.exact_seconds(LINK, 100, 2) == pytest.approx(1 + 1)


def test_measurements_that_follow_the_model_meet_the_targets() -> None:
    measured = {world_size: printed(world_size) for world_size in scaling.REAL}
    rows = scaling.rows_of(measured, Predictor.of(measured[2], NUM_ROWS, num_cores=2))
    assert all(target.ok for target in scaling.targets_of(rows).values())
    assert [row["ranks"] for row in rows if row["scheme"] == "none"] == [*scaling.REAL, *scaling.PREDICTED]
    assert all(row["ms"] == "" for row in rows if row["ranks"] > 4)


def test_one_measurement_that_is_far_off_misses_the_target() -> None:
    measured = {2: printed(2), 3: printed(3), 4: printed(4, slower=1.5)}
    targets = scaling.targets_of(scaling.rows_of(measured, Predictor.of(measured[2], NUM_ROWS, num_cores=2)))
    assert {name: target.ok for name, target in targets.items()} == {
        "bytes_predicted_within": True,
        "time_predicted_within": False,
    }
