"""What `bench.link` makes of measurements, and one tiny real run of it."""

import time
from dataclasses import replace
from typing import Any

import pytest

from bench import link, ranks, report
from bench.link import LINKS, Measured, Setting
from bench.modes import CHOICE, COMPUTE_ONLY, HOOK_ALONE, PLAIN, our_plans
from bench.ranks import Cluster
from examples.demo import network

FAST = Setting(Cluster(2, LINKS["1 Gbit/s"]), "1 Gbit/s", "6M")
SLOW = Setting(Cluster(2, LINKS["200 Mbit/s"]), "200 Mbit/s", "6M")

CROSSING = Setting(
    Cluster(2, LINKS["1 Gbit/s"] // 20, ranks_per_host=2, inner_link=LINKS["1 Gbit/s"] // 2),
    "50 Mbit/s between hosts, 500 Mbit/s inside",
    "6M",
)


def blocks(*milliseconds: float, sent: float = 1e6, told: float | None = None) -> list[dict[str, Any]]:
    return [
        {
            "step_seconds": [ms / 1000, ms / 1000, 9.9],
            "sent_bytes": sent,
            "told_bytes": told,
            "codec_seconds": told and 0.01,
        }
        for ms in milliseconds
    ]


def measured(setting: Setting = FAST, **changed: list[dict[str, Any]]) -> Measured:
    modes = {
        COMPUTE_ONLY: blocks(200, 400),
        PLAIN: blocks(400, 800),
        HOOK_ALONE: blocks(208, 416),
        "torch fp16": blocks(300, 600),
        "torch powersgd rank 1": blocks(260, 520),
        "none": blocks(400, 800, told=1e6),
        "int8": blocks(290, 580, told=1e6),
        "onebit": blocks(220, 440, told=1e6),
    }
    return Measured(setting, modes | changed)


def missed(one: Measured) -> set[str]:
    return {name for name, target in link.targets_of(one).items() if not target.ok}


def test_figures_are_medians_of_ratios_within_a_round() -> None:
    rows = {row["mode"]: row for row in link.rows_of(measured())}
    assert rows["onebit"]["gap closed"] == pytest.approx(0.9)
    assert rows["onebit"]["x plain"] == pytest.approx(400 / 220)
    assert rows["onebit"]["share of limit"] == pytest.approx(200 / 220)
    assert rows["onebit"]["±"] == pytest.approx(0)
    assert rows["onebit"]["codec ms"] == pytest.approx(10)
    assert rows[PLAIN]["codec ms"] == ""
    assert rows[COMPUTE_ONLY]["gap closed"] == pytest.approx(1)


def test_without_plain_ddp_nothing_is_compared_with_it() -> None:
    one = measured()
    rows = link.rows_of(Measured(FAST, {name: blocks for name, blocks in one.modes.items() if name != PLAIN}))
    assert all(row["x plain"] == row["±"] == row["gap closed"] == "" for row in rows)
    assert report.losses([{"bench": "link", "rows": rows, "targets": {}}]) == []


def test_none_is_not_a_lossy_codec_and_the_best_of_each_side_is_compared() -> None:
    one = measured()
    assert one.ours() == ["int8", "onebit"]
    assert one.best(one.ours()) == "onebit"
    assert one.best(one.theirs()) == "torch powersgd rank 1"


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, set()),
        (
            {"onebit": blocks(231, 462, told=1e6)},
            {"gap_closed_by_best_lossy_codec_at_1_gbit", "lead_over_best_torch_hook_at_1_gbit"},
        ),
        ({"int8": blocks(301, 602, told=1e6)}, {"gap_closed_by_int8_at_1_gbit"}),
    ],
)
def test_targets_at_1_gbit(changed: dict[str, Any], wanted: set[str]) -> None:
    assert missed(measured(FAST, **changed)) == wanted


def test_targets_at_200_mbit_ask_for_three_and_a_half_times() -> None:
    assert missed(measured(SLOW)) == {"speedup_of_best_lossy_codec_at_200_mbit"}
    assert missed(measured(SLOW, **{PLAIN: blocks(800, 1600)})) == set()


def test_two_levels_are_compared_with_the_same_codec_between_all_ranks() -> None:
    assert "bf16 flat" in link.crossing_plans()
    slower = {"int8 hybrid": blocks(300, 600, told=1e6)}
    one = measured(CROSSING, **slower, **{"int8 flat": blocks(421, 870, told=1e6)})
    assert missed(one) == {"lead_of_two_levels_over_flat_int8_at_2x2"}
    one = measured(CROSSING, **slower, **{"int8 flat": blocks(437, 880, told=1e6)})
    assert missed(one) == set()
    faster = {"int8 hybrid": blocks(270, 540, told=1e6)}
    assert missed(measured(CROSSING, **faster, **{"int8 flat": blocks(421, 870, told=1e6)})) == set()


@pytest.mark.parametrize(("milliseconds", "wanted"), [(411, set()), (414, {"own_choice_over_plain_ddp_unshaped"})])
def test_own_choice_must_not_be_slower_than_plain_ddp(milliseconds: float, wanted: set[str]) -> None:
    setting = Setting(Cluster(2, LINKS["unshaped"]), "unshaped", "6M")
    assert missed(measured(setting, **{CHOICE: blocks(milliseconds, 2 * milliseconds, told=1e6)})) == wanted


def test_other_settings_have_no_targets() -> None:
    assert link.targets_of(measured(replace(FAST, model="25M"))) == {}


@pytest.mark.parametrize("sent", [0.9e6, 1.5e6])
def test_bytes_that_were_not_sent_as_told_are_refused(sent: float) -> None:
    link.check_bytes(measured())
    with pytest.raises(RuntimeError, match=r"int8: a rank says it sent 1000000 bytes"):
        link.check_bytes(measured(int8=blocks(290, told=1e6, sent=sent)))


def test_settings_are_found_by_a_part_of_their_name() -> None:
    assert [one.name for one in link.settings_of(quick=True, only="")] == [
        "2 ranks, 6M, 1 Gbit/s",
        "2 ranks, 6M, 200 Mbit/s",
        "2 ranks, 6M, unshaped",
    ]
    assert len(link.settings_of(quick=False, only="")) == 3 * len(LINKS) + 1
    assert [one.name for one in link.settings_of(quick=True, only="", topology="2x2")] == [CROSSING.name]
    assert [one.name for one in link.settings_of(quick=False, only="2 ranks, 25M, un")] == [
        "2 ranks, 25M, unshaped"
    ]


TINY = {
    "width": 64,
    "num_blocks": 1,
    "batch_size": 1,
    "length": 8,
    "only": [],
    "steps_per_block": 1,
    "least_rounds": 1,
    "deadline": 0.0,
}


@pytest.mark.netns
@pytest.mark.distributed
def test_every_mode_is_measured_on_real_ranks_behind_links() -> None:
    plans = {name: {**plan, "min_elements": 0} for name, plan in our_plans().items()}
    options = {**TINY, "plans": plans, "only": [*plans, COMPUTE_ONLY, HOOK_ALONE, PLAIN, "torch fp16"]}
    modes = ranks.run(FAST.cluster, "bench.link_rank", options, limit_seconds=100)
    assert set(plans) | {COMPUTE_ONLY, HOOK_ALONE, PLAIN, "torch fp16"} <= set(modes)
    assert "torch bf16" not in modes
    assert {len(rounds) for rounds in modes.values()} == {1}
    assert (
        modes[COMPUTE_ONLY][0]["sent_bytes"] < 5000 < modes["int8"][0]["sent_bytes"] < modes[PLAIN][0]["sent_bytes"]
    )
    link.check_bytes(Measured(FAST, modes))


@pytest.mark.netns
def test_rank_that_fails_is_reported_with_its_words_and_nothing_is_left() -> None:
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'nonsense'"):
        ranks.run(Cluster(2, 0, ranks_per_host=2), "bench.link_rank", {"nonsense": 1}, limit_seconds=60)


@pytest.mark.netns
def test_ranks_that_do_not_end_are_ended() -> None:
    endless = {**TINY, "plans": {"int8": our_plans()["int8"]}, "only": ["int8"], "least_rounds": 10**9}
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="did not end within 3 s"):
        ranks.run(FAST.cluster, "bench.link_rank", endless, limit_seconds=3)
    assert time.monotonic() - began < 30


def test_machine_without_namespaces_gets_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "choose_ground", lambda: (network.LOOPBACK, "Operation not permitted"))
    with pytest.raises(RuntimeError, match="Operation not permitted"):
        ranks.run(FAST.cluster, "bench.link_rank", {}, limit_seconds=1)
