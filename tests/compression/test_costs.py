"""Which buckets should be compressed, from given figures."""

import pytest
import torch
import torch.distributed as dist
from gradwire_compression.buckets import pack
from gradwire_compression.codecs import registry
from gradwire_compression.collectives.cast import Cast
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.collectives.hierarchical import Hierarchical
from gradwire_compression.collectives.low_rank import LowRank
from gradwire_compression.collectives.nodes import NodeGroups
from gradwire_compression.collectives.power import AgreedPower
from gradwire_compression.collectives.two_phase import TwoPhase
from gradwire_compression.costs import Costs, Estimate, Line, Link, Links, estimate
from gradwire_compression.matrices import WarmStarts, matrix_of
from gradwire_compression.plan import Plan
from gradwire_compression.sampling import sample
from gradwire_compression.scratch import Scratch

CPU, META = torch.device("cpu"), torch.device("meta")
NUM_ELEMENTS = 64 * 1024
SLOTS = pack([("weight", NUM_ELEMENTS)])

# Seconds for a message, and for a byte: about 1 Gbit/s.
LATENCY, BYTE = 1e-4, 8e-9


@pytest.fixture(autouse=True)
def group(tmp_path):
    """Collectives ask what backend their group has."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def link(latency: float = LATENCY, byte: float = BYTE) -> Link:
    return Link(Line(latency, byte), Line(2 * latency, byte))


def codec_of(name: str):
    return registry.make(name, Plan(codec=name).parameters, CPU)


def flat(name: str, world_size: int = 2):
    codec, scratch = codec_of(name), Scratch(META)
    if name == "bf16":
        power = AgreedPower({}, ["weight"], META)
        return Cast(SLOTS, codec, power, None, 0, world_size, scratch, META)
    if name == "powersgd":
        matrices = [matrix_of(torch.empty(256, 256, device="meta"))]
        return LowRank(SLOTS, matrices, codec, WarmStarts(), None, world_size, scratch, META)
    return TwoPhase(SLOTS, codec, None, 0, world_size, scratch, META)


def weigh(name: str, costs: Costs, collective=None, exempt_bytes: int = 0, world_size: int = 2) -> Estimate:
    return estimate(
        costs,
        codec_of(name),
        collective or flat(name, world_size),
        num_elements=NUM_ELEMENTS,
        num_bytes=4 * NUM_ELEMENTS + exempt_bytes,
        exempt_bytes=exempt_bytes,
        world_size=world_size,
    )


def test_line_goes_through_two_points_and_never_below_zero():
    assert Line.through((10.0, 1.0), (30.0, 5.0)) == Line(0.0, 0.2)
    assert Line.through((10.0, 3.0), (30.0, 5.0)) == Line(2.0, 0.1)
    assert Line.through((10.0, 3.0), (30.0, 2.0)) == Line(3.0, 0.0)
    assert Line(2.0, 0.5).at(4) == 4.0


def test_figures_add_up_to_what_they_say():
    costs = Costs(Links(link()), Line(3e-5, 1e-9))
    exact = LATENCY + BYTE * exact_wire_bytes(4 * NUM_ELEMENTS, 2)
    # Twice, since it takes cores from backward.
    codec = 2 * (3e-5 + 1e-9 * NUM_ELEMENTS)
    for name, messages in (("int8", 2), ("bf16", 1), ("powersgd", 2)):
        found = weigh(name, costs)
        assert found.exact_seconds == pytest.approx(exact)
        assert found.lossy_seconds == pytest.approx(messages * LATENCY + BYTE * flat(name).wire_bytes + codec)


def test_exempt_tensors_travel_either_way():
    costs = Costs(Links(link()), Line(0.0, 0.0))
    without, beside = weigh("int8", costs), weigh("int8", costs, exempt_bytes=40_000)
    assert beside.exact_seconds - without.exact_seconds == pytest.approx(BYTE * 40_000)
    assert beside.lossy_seconds - without.lossy_seconds == pytest.approx(BYTE * 40_000)


@pytest.mark.parametrize(
    ("latency", "byte", "codec", "is_exact_faster"),
    [
        (LATENCY, BYTE, 1e-9, False),
        # Two messages take longer than what they save.
        (0.01, BYTE, 1e-9, True),
        # The link is faster than the codec.
        (LATENCY, 1e-10, 1e-9, True),
        # Nothing but bytes counts.
        (0.0, BYTE, 0.0, False),
    ],
    ids=["slow link", "latency", "fast link", "bytes"],
)
def test_codec_is_used_only_where_it_saves_more_than_it_costs(latency, byte, codec, is_exact_faster):
    found = weigh("int8", Costs(Links(link(latency, byte)), Line(0.0, codec)))
    assert found.is_exact_faster is is_exact_faster


def test_saving_within_the_error_of_the_figures_does_not_count():
    assert Estimate(1.0, 0.75).is_exact_faster
    assert not Estimate(1.0, 0.65).is_exact_faster


def test_all_ranks_of_two_levels_come_to_the_same_figure():
    costs = Costs(Links(link(), link(1e-6, 1e-10), link()), Line(1e-5, 1e-9))
    found = {weigh("onebit", costs, _two_levels("onebit", rank), world_size=6) for rank in range(3)}
    assert len(found) == 1
    (one,) = found
    # A third of the elements crosses, one bit each.
    assert one.lossy_seconds < 0.3 * one.exact_seconds


def test_slow_links_inside_a_node_count():
    slow = Costs(Links(link(), link(), link()), Line(1e-5, 1e-9))
    fast = Costs(Links(link(), link(1e-6, 1e-10), link()), Line(1e-5, 1e-9))
    one = _two_levels("bf16", 0)
    inside = one.inner_wire_bytes
    gap = (
        weigh("bf16", slow, one, world_size=6).lossy_seconds - weigh("bf16", fast, one, world_size=6).lossy_seconds
    )
    assert gap == pytest.approx(2 * (LATENCY - 1e-6) + (BYTE - 1e-10) * inside)


def _two_levels(name: str, rank: int) -> Hierarchical:
    """Return one of three ranks of one of two nodes; the last one's shard is shorter than the others'."""
    nodes = NodeGroups(None, None, rank, 3, 0, 2)
    codec = codec_of(name)

    def across(owned, stage):
        if name == "bf16":
            return Cast(owned, codec, AgreedPower({}, ["weight"], META), None, 0, 2, Scratch(META), META)
        return TwoPhase(owned, codec, None, 0, 2, Scratch(META), META)

    return Hierarchical(SLOTS, torch.float32, nodes, across, Scratch(META), META)


@pytest.mark.parametrize("name", [name for name in registry.available() if name != "none"])
def test_every_codec_can_be_sampled(name):
    line = sample(codec_of(name), 3, CPU)
    assert line.fixed_seconds >= 0
    assert line.seconds_per_unit > 0
    assert line.at(0) < line.at(10**6)
