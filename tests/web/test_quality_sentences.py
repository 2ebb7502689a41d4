"""Quality against the baseline, in both languages."""

from gradwire_server.pages.sentences.quality import quality
from gradwire_server.runs.views import Measure, QualityView
from made_view import chinese, english, measure, plain, quality_view


def both(view: QualityView) -> tuple[tuple[str, str], tuple[str, str]]:
    return tuple(  # type: ignore[return-value]
        (plain(said.state), plain(said.evidence)) for said in (quality(english(), view), quality(chinese(), view))
    )


def test_within_limit_names_drift_interval_limit_floor_checks_and_step() -> None:
    assert both(quality_view()) == (
        (
            "Within limit",
            "accuracy is 0.1 % worse than the uncompressed baseline "
            "(0.0–0.2 %; limit 0.5 %, no worse than 0.8670), 6 checks, last at step 40 000.",
        ),
        (
            "限值内",
            "accuracy 比无压缩基线差 0.1%（0.0%–0.2%；上限 0.5%，即不差于 0.8670），"
            "共 6 次评估，最近在第 40000 步。",
        ),
    )


def test_a_better_model_is_called_better() -> None:
    view = quality_view(drift=measure(-0.004, -0.006, -0.002))
    assert "accuracy is 0.4 % better than the uncompressed baseline" in both(view)[0][1]
    assert "比无压缩基线好 0.4%" in both(view)[1][1]


def test_no_difference_is_called_level() -> None:
    view = quality_view(drift=measure(0.0001, -0.001, 0.001))
    assert "accuracy is level with the uncompressed baseline" in both(view)[0][1]


def test_beyond_limit_says_to_roll_back() -> None:
    view = quality_view(state="breach", drift=measure(0.008, 0.006, 0.010), floor=None)
    assert both(view) == (
        (
            "Beyond limit",
            "accuracy is 0.8 % worse than the uncompressed baseline (0.6–1.0 %; limit 0.5 %), 6 checks. Roll back.",
        ),
        ("超出限值", "accuracy 比无压缩基线差 0.8%（0.6%–1.0%；上限 0.5%），共 6 次评估。建议回滚。"),
    )


def test_a_value_that_is_not_finite_is_beyond_the_limit() -> None:
    view = quality_view(state="breach", drift=Measure(reason="nan"))
    assert both(view)[0] == ("Beyond limit", "accuracy is not a finite number. Roll back.")


def test_an_interval_across_the_limit_cannot_be_told_yet() -> None:
    view = quality_view(state="cannot_tell", drift=measure(0.0045, 0.001, 0.008))
    assert both(view) == (
        (
            "Cannot tell yet",
            "accuracy is between 0.1 % and 0.8 % worse than the uncompressed baseline (limit 0.5 %), 6 checks.",
        ),
        ("暂时无法判断", "accuracy 比无压缩基线差 0.1%–0.8%（上限 0.5%），共 6 次评估。"),
    )


def test_without_a_baseline_there_is_no_evidence_and_that_is_not_healthy() -> None:
    assert both(QualityView(state="no_evidence", reason="no_baseline")) == (
        ("No evidence", "No baseline is chosen. This does not mean quality is fine. Choose a baseline."),
        ("情况未知", "尚未选择基线。这不代表精度正常。请选择基线。"),
    )


def test_no_baseline_is_advised_where_no_run_could_be_one() -> None:
    view = QualityView(state="no_evidence", reason="no_baseline")
    said = quality(english(), view, can_choose=False)
    assert said.evidence == "No baseline is chosen. This does not mean quality is fine."


def test_every_reason_for_no_evidence_is_told_apart() -> None:
    texts = {
        both(QualityView(state="no_evidence", reason=reason))[0][1]
        for reason in ("no_baseline", "too_few_checks", "no_common_steps", "")
    }
    assert len(texts) == 4
    assert all("This does not mean quality is fine." in text for text in texts)
