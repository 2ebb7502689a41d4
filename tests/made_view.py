"""A run's view made up for tests of sentences and templates: eight GPUs, uncompressed, worth it."""

from typing import Any

from gradwire_protocol.plans import PlanSpec
from gradwire_server.pages.languages import languages
from gradwire_server.pages.wording import THIN, Wording
from gradwire_server.runs.views import (
    CodecChoice,
    DirectiveView,
    LoopStage,
    Measure,
    QualityView,
    RunSummary,
    RunView,
    SavingView,
    StatusView,
    TrustView,
    VerdictView,
)
from msgspec.structs import replace

# 2026-05-04 14:02:07 UTC, a Monday.
NOW = 1_777_903_327.0

LOOP = (
    LoopStage(name="compute", seconds=0.150, share=0.375),
    LoopStage(name="compress", seconds=0.0, share=0.0),
    LoopStage(name="send", seconds=0.180, share=0.45, is_largest=True),
    LoopStage(name="decompress", seconds=0.0, share=0.0),
    LoopStage(name="update", seconds=0.030, share=0.075),
)

CODECS = (
    CodecChoice(name="none", bits_per_element=32.0, extra_memory_bytes=0),
    CodecChoice(
        name="int8",
        bits_per_element=8.0625,
        extra_memory_bytes=1_200_000_000,
        expected_speedup=1.3,
    ),
    CodecChoice(name="onebit", bits_per_element=1.016, refusal="not under AdamW", safe_alternative="int8"),
)


def english() -> Wording:
    return Wording(languages()["en"], NOW)


def chinese() -> Wording:
    return Wording(languages()["zh"], NOW)


def plain(text: str) -> str:
    """Return the text with ordinary spaces and dashes, as it is easier to write in a test."""
    return text.replace(THIN, " ").replace("\u2060", "")


def measure(value: float, low: float | None = None, high: float | None = None) -> Measure:
    return Measure(value=value, low=low, high=high)


def verdict_view(**changes: Any) -> VerdictView:
    made = VerdictView(
        kind="worth_it",
        share=measure(0.43, 0.41, 0.45),
        first_step=200,
        last_step=1200,
        num_steps=1000,
        expected_speedup=1.302,
        remaining_seconds=12 * 86400.0,
        remaining_seconds_expected=9.2 * 86400,
        largest_other="backward",
        largest_other_share=0.3,
    )
    return replace(made, **changes)


def directive_view(**changes: Any) -> DirectiveView:
    made = DirectiveView(
        revision=7,
        kind="rollback",
        codec="none",
        author="Ada",
        reason="",
        state="applied",
        requested_at=NOW - 3,
        answered_at=NOW - 2.1,
        seconds=0.9,
        step=41207,
        num_ranks_confirmed=8,
        num_ranks=8,
    )
    return replace(made, **changes)


def quality_view(**changes: Any) -> QualityView:
    made = QualityView(
        state="within_limit",
        metric="accuracy",
        baseline_id="b",
        baseline_name="first",
        drift=measure(0.001, 0.0, 0.002),
        floor=0.867,
        num_checks=6,
        last_step=40_000,
    )
    return replace(made, **changes)


def run_summary(**changes: Any) -> RunSummary:
    made = RunSummary(
        id="01890000-0000-7000-8000-000000000001",
        name="llama-7b",
        project="default",
        created_at=NOW - 86400,
        status=StatusView(name="running", since=NOW - 86400),
        codec="none",
        step=41_207,
        total_steps=100_000,
        world_size=8,
        device="cuda",
        verdict=verdict_view(),
        quality=QualityView(state="no_evidence", reason="no_baseline"),
        sparkline=(0.42, 0.44, None, 0.43),
    )
    return replace(made, **changes)


def run_view(**changes: Any) -> RunView:
    """Return the view with `changes`; those of the summary go by `summary={...}`."""
    summary = run_summary(**changes.pop("summary", {}))
    made = RunView(
        summary=summary,
        model="model",
        attempt_number=1,
        plan=PlanSpec(codec=summary.codec),
        revision=0,
        epoch=0,
        codec_since_step=0,
        num_ranks_confirmed=8,
        loop=LOOP,
        step_seconds=measure(0.4),
        communication_compute_ratio=measure(1.26),
        throughput=measure(41_207.0),
        throughput_unit="tokens",
        wire_bytes_per_second=measure(9.4e9),
        bandwidth_use=measure(0.75),
        link_bytes_per_second=12.5e9,
        link_note="100 Gbit/s",
        raw_share=measure(0.52),
        exposed_share=measure(0.43),
        quality=summary.quality,
        saving=SavingView(
            saved_hours=measure(12.4),
            will_save_hours=Measure(reason="compression is off"),
            could_save_hours=measure(210.0),
        ),
        finish_at=measure(NOW + 9 * 86400),
        last_change=None,
        trust=TrustView(age_seconds=1.2, num_nodes_reporting=2, num_nodes=2, agent_cost=measure(0.0021)),
        codecs=CODECS,
        is_steered=True,
        backend="nccl",
        optimizer="AdamW",
        device_name="H200",
    )
    return replace(made, **changes)


def compressed_view(**changes: Any) -> RunView:
    """Return a view of the run while int8 is on since step 38 000."""
    summary = {"codec": "int8", "verdict": paying_view(), **changes.pop("summary", {})}
    return run_view(summary=summary, codec_since_step=38_000, **changes)


def paying_view(**changes: Any) -> VerdictView:
    made = VerdictView(
        kind="paying_off",
        share=measure(0.43, 0.41, 0.45),
        codec="int8",
        speedup=measure(1.31, 1.27, 1.35),
        num_uncompressed_steps=60,
    )
    return replace(made, **changes)
