import json
from pathlib import Path

import pytest

from bench import demo, runner
from bench.runner import Result, Target

RUN = {
    "link": "1 Gbit/s, shaped",
    "exposed_transfer_share": {"none": 0.47, "int8": 0.2},
    "step_seconds": {"none": 0.4, "int8": 0.3},
    "speedup": 1.333,
    "rollback": {"requested_to_last_rank_seconds": 0.7, "step": 103, "ranks": 2},
    "loss_first": 4.4,
    "loss_last": 2.4,
    "replicas_equal": True,
}


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_record_holds_rows_and_targets_and_the_status_says_whether_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ok: bool, status: int
) -> None:
    file = tmp_path / "result.json"
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--json", str(file)])
    asked = []

    def measure(quick: bool) -> Result:
        asked.append(quick)
        return Result(rows=[{"codec": "int8", "ms": 1.25}], targets={"speed": Target(1.5, "> 1.2", ok)})

    assert runner.main("codecs", measure) == status
    record = json.loads(file.read_text())
    assert asked == [True]
    assert set(record) == {"bench", "options", "date", "machine", "rows", "targets"}
    assert record["options"] == ["--quick"]
    assert (record["bench"], record["rows"]) == ("codecs", [{"codec": "int8", "ms": 1.25}])
    assert record["targets"] == {"speed": {"value": 1.5, "want": "> 1.2", "ok": ok}}
    printed = capsys.readouterr().out
    assert "codec    ms\n int8  1.25" in printed
    assert ("MISSED speed" in printed) is not ok


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, set()),
        ({"speedup": 1.2}, {"speedup_int8_at_1_gbit"}),
        ({"rollback": {"requested_to_last_rank_seconds": 1.2}}, {"rollback_seconds_beyond_two_steps"}),
        ({"loss_last": 4.5}, {"loss_falls"}),
    ],
)
def test_demo_benchmark_judges_every_target(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], missed: set[str]
) -> None:
    monkeypatch.setattr(demo, "run_once", lambda steps: RUN | changed)
    result = demo.measure(quick=False)
    assert {name for name, target in result.targets.items() if not target.ok} == missed
    assert len(result.rows) == demo.NUM_RUNS
