"""`gradwire linktest` where the links are known: hosts in network namespaces, each behind a shaped link."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.training import attach, make_model
from gradwire.linktest.slow import explain, slow_pairs
from gradwire.linktest.table import table
from gradwire.transport import place
from gradwire_protocol.records import LinkTest

from bench.ranks import Cluster, run
from examples.demo import network

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

# 200 Mbit/s for each host, and a fifth of it out of the third one.
LINK, SLOW = 25_000_000, 5_000_000


@pytest.mark.netns
def test_shaped_links_are_measured_and_the_slow_one_is_named() -> None:
    ground, reason = network.choose_ground()
    if not ground.is_shaped:
        pytest.skip(f"this machine allows no network namespaces: {reason}")
    cluster = Cluster(num_hosts=3, link=LINK)
    found = run(cluster, "tests.distributed.linktest_rank", {"slow": {"2": SLOW}}, 200)
    test = msgspec.convert(found, LinkTest)
    assert (test.backend, test.num_ranks) == ("gloo", 3)
    rates = {(pair.source, pair.target): pair.bytes_per_second for pair in test.pairs}
    assert sorted(rates) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for (source, _), rate in rates.items():
        assert rate == pytest.approx(SLOW if source == 2 else LINK, rel=0.15)
    assert {(pair.source, pair.target) for pair in slow_pairs(test.pairs)} == {(2, 0), (2, 1)}
    assert "All slow pairs have rank 2 on " in explain(test.pairs)[0]
    # Every collective waits for the slowest link. Gloo's reduce-scatter is an all-reduce of which most is thrown
    # away: it sends twice the bytes that it would need.
    betas = {one.name: one.beta_bytes_per_second for one in test.collectives}
    wanted = {"all_reduce": SLOW, "reduce_scatter": SLOW / 2, "all_gather": SLOW, "all_to_all": SLOW}
    assert betas == pytest.approx(wanted, rel=0.15)
    assert "all_to_all" in table(test)


def test_ranks_of_one_machine_are_tested_under_torchrun(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    outcome = subprocess.run(
        [*launcher, "--no-python", sys.executable, "-m", "gradwire", "linktest"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "Link test of 2 ranks over gloo" in outcome.stdout
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        assert f"\n{name}" in outcome.stdout
    assert outcome.stdout.count("rank 0 on ") >= 2


def _attached(rank: int, world_size: int, folder: str, wanting: tuple[int, ...]) -> LinkTest | None:
    os.environ["GRADWIRE_LINKTEST"] = "1" if rank in wanting else "0"
    session = attach(*make_model(), folder)
    # Rank 0 has written the stream's facts before it passes.
    dist.barrier()
    (found,) = [facts for _, facts in place.find_streams(Path(folder))]
    session.close()
    return found.started.link.test


def test_run_keeps_the_test_that_all_its_ranks_want(tmp_path: Path) -> None:
    for test in run_ranks(2, _attached, str(tmp_path / "a"), (0, 1)):
        assert test is not None
        assert [one.name for one in test.collectives] == [
            "all_reduce",
            "reduce_scatter",
            "all_gather",
            "all_to_all",
        ]
        assert {(pair.source, pair.target) for pair in test.pairs} == {(0, 1), (1, 0)}
    # One that did not want it would be waited for.
    assert run_ranks(2, _attached, str(tmp_path / "b"), (1,)) == [None, None]


def test_one_rank_has_no_links() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "gradwire", "linktest"], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 2
    assert "needs two ranks or more" in outcome.stderr
