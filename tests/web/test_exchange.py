"""The line of the engineer's section that says how gradients travel."""

import pytest
from gradwire_compression.collectives import nodes
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import RouteFacts
from gradwire_server.pages.exchange import exchange
from made_view import chinese, compressed_view, english, plain, run_view

TWO_LEVELS = RouteFacts(wire_bytes=9_000_000, node_bytes=3_000_000)


def _said(route, words=None, **changes):
    view = compressed_view(route=route, plan=PlanSpec(codec="int8", **changes))
    return [plain(text) for text in exchange(words or english(), view)]


def test_two_levels_are_named_hop_by_hop_with_the_bytes_between_nodes():
    hops, note = _said(TWO_LEVELS)
    nodes = compressed_view().trust.num_nodes
    local = compressed_view().summary.world_size // nodes
    assert hops == (
        f"reduce-scatter among {local} ranks of a node → int8 between {nodes} nodes → all-gather inside"
    )
    assert note == "about 3.00 MB leave each node per step"


def test_bfloat16_inside_nodes_is_said():
    assert (
        _said(TWO_LEVELS, exchange="hybrid")[1] == "bfloat16 inside nodes, about 3.00 MB leave each node per step"
    )


def test_flat_says_why_and_what_each_rank_sends():
    hops, note = _said(RouteFacts(flat_reason="all ranks are on one node", wire_bytes=9_000_000))
    assert hops == f"int8 between all {compressed_view().summary.world_size} ranks"
    assert note == "all ranks are on one node, about 9.00 MB sent by each rank per step"


def test_flat_by_request_says_so_without_the_other_exchanges_bytes():
    assert _said(TWO_LEVELS, exchange="flat")[1] == "asked for, though nodes could average inside first"


def test_an_agent_that_does_not_say_gets_no_guess():
    assert _said(None)[1] == ""


def test_uncompressed_is_a_word_of_the_page():
    assert plain(exchange(english(), run_view(route=RouteFacts(wire_bytes=1)))[0]).startswith(
        "uncompressed between all"
    )


@pytest.mark.parametrize(
    "ranks_by_node", [(), ((0, 1),), ((0,), (1,)), ((0, 1), (2,))], ids=["unknown", "one", "single", "unequal"]
)
def test_the_agents_reasons_are_translated(ranks_by_node):
    reason = nodes.flat_reason(ranks_by_node)
    assert reason in _said(RouteFacts(flat_reason=reason, wire_bytes=1))[1]
    assert reason not in _said(RouteFacts(flat_reason=reason, wire_bytes=1), chinese())[1]
