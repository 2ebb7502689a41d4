import importlib
from typing import Any

import pytest

from bench import report


def row(mode: str, step_ms: float, speedup: float, setting: str = "2 ranks") -> dict[str, Any]:
    return {"setting": setting, "mode": mode, "step ms": step_ms, "x plain": speedup}


def record(bench: str, rows: list[dict[str, Any]], **targets: bool) -> dict[str, Any]:
    figures = {name: {"value": 1.0, "want": ">= 2", "ok": ok} for name, ok in targets.items()}
    options = ["--quick"] if bench == "kernels" else []
    how = {"bench": bench, "options": options, "date": "2026-01-02", "machine": "a small one"}
    return {**how, "rows": rows, "targets": figures}


ROWS = [row("compute only", 100, 2), row("plain DDP", 200, 1), row("torch fp16", 150, 1.33), row("none", 203, 0.98)]


def test_page_has_date_machine_and_every_row() -> None:
    text = report.page([record("kernels", [{"codec": "int8", "ms": 1.23456}], encode_times_a_copy=True)])
    assert "`python -m bench.kernels --quick`, 2026-01-02, a small one." in text
    assert "| codec | ms |\n| --- | --- |\n| int8 | 1.235 |" in text
    assert "| encode_times_a_copy | 1 | >= 2 | ok |" in text
    assert "Nowhere in these measurements." in text


def test_missed_targets_are_losses() -> None:
    assert report.losses([record("kernels", [], fast=True, slow=False)]) == [
        "`slow` of `bench.kernels` is 1.0; wanted: >= 2."
    ]


def test_codec_slower_than_plain_ddp_is_a_loss_and_none_is_not() -> None:
    rows = [*ROWS, row("int8", 140, 1.43), row("topk", 250, 0.8)]
    assert report.losses([record("link", rows)]) == ["2 ranks: slower than plain DDP: topk (0.80 times its speed)."]


def test_faster_hook_of_pytorch_is_a_loss_of_its_setting() -> None:
    rows = [*ROWS, row("int8", 160, 1.25), row("plain DDP", 9, 1, "4 ranks"), row("int8", 8, 1.1, "4 ranks")]
    assert report.losses([record("link", rows)]) == [
        "2 ranks: PyTorch's fp16 hook takes 150 ms, our best, int8, 160 ms."
    ]


@pytest.mark.parametrize("bench", sorted(report.TITLES))
def test_every_benchmark_of_the_page_says_what_it_measured(bench: str) -> None:
    text = "\n\n".join(report.section(record(bench, ROWS, kept=True)))
    assert text.startswith(f"## {report.TITLES[bench]}\n")
    assert (importlib.import_module(f"bench.{bench}").__doc__ or "").strip() in text
    options = " --quick" if bench == "kernels" else ""
    assert f"`python -m bench.{bench}{options}`, 2026-01-02" in text
