"""The exchange in two levels on two hosts of two ranks, whose inner links are fast and outer links slow."""

import pytest

from bench.ranks import Cluster, run
from examples.demo import network

pytestmark = [pytest.mark.distributed, pytest.mark.netns, pytest.mark.timeout(240)]


@pytest.fixture
def cluster() -> Cluster:
    ground, reason = network.choose_ground()
    if not ground.is_shaped:
        pytest.skip(f"this machine allows no network namespaces: {reason}")
    # 100 Mbit/s between the hosts, 1 Gbit/s inside.
    return Cluster(num_hosts=2, link=12_500_000, ranks_per_host=2, inner_link=125_000_000)


def test_two_levels_are_right_and_send_less_over_the_slow_link(cluster: Cluster) -> None:
    found = run(cluster, "tests.distributed.two_hosts", {"kinds": ["hierarchical", "flat"]}, 200)
    two_levels, flat = found["hierarchical"], found["flat"]
    for one in (two_levels, flat):
        assert 0 < one["error"] < 0.01
        assert one["num_replicas_equal"] == 4
    # What the kernel counts on the host's link, headers and acknowledgements included.
    assert 1.0 <= two_levels["sent_bytes"] / two_levels["node_bytes"] < 1.25
    # Flat, each of the two ranks first sends to both ranks of the other host, and then gloo gathers in a ring. A
    # sixth of what one rank sends is what it sends to one other.
    leaving = (2 * 2 + 3) * flat["wire_bytes"] / 6
    assert 1.0 <= flat["sent_bytes"] / leaving < 1.25
    assert two_levels["sent_bytes"] < 0.6 * flat["sent_bytes"]
