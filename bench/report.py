"""Writes docs/performance.md from the JSON files of the benchmarks.

    python -m bench.report kernels.json link.json scaling.json > docs/performance.md

Nothing in the page is written by hand, what we lose least of all.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.modes import COMPUTE_ONLY, PLAIN, TORCH
from bench.runner import Row, cell

Record = dict[str, Any]

TITLES = {
    "kernels": "Kernels",
    "link": "Training over shaped links",
    "scaling": "More ranks",
    "truth": "What is measured against what is true",
    "overhead": "What measuring costs",
    "demo": "The demo",
    "checks": "Check windows",
    "soak": "Soak",
}


def page(records: Sequence[Record]) -> str:
    """Return the page in Markdown."""
    parts = [
        "# Performance",
        "This page is written by `python -m bench.report` from what the benchmarks measured. Absolute times belong "
        "to the machine; ratios were taken between things that ran in turns in the same processes.",
        "## Where we lose",
        _list(losses(records)) or "Nowhere in these measurements.",
    ]
    for record in records:
        parts += section(record)
    return "\n\n".join(parts) + "\n"


def section(record: Record) -> list[str]:
    """Return the paragraphs of one benchmark."""
    name = record["bench"]
    about = (importlib.import_module(f"bench.{name}").__doc__ or "").strip()
    targets = [
        {
            "target": target,
            "measured": figures["value"],
            "wanted": figures["want"],
            "": "ok" if figures["ok"] else "missed",
        }
        for target, figures in record["targets"].items()
    ]
    return [
        f"## {TITLES[name]}",
        about,
        f"`{' '.join([f'python -m bench.{name}', *record['options']])}`, {record['date']}, {record['machine']}.",
        *([table(targets)] if targets else []),
        table(record["rows"]),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([cell(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def losses(records: Sequence[Record]) -> list[str]:
    """Return in sentences what is slower than it should be, or than what others offer."""
    found = []
    for record in records:
        found += [
            f"`{name}` of `bench.{record['bench']}` is {figures['value']}; wanted: {figures['want']}."
            for name, figures in record["targets"].items()
            if not figures["ok"]
        ]
        if record["bench"] == "link":
            for setting in dict.fromkeys(row["setting"] for row in record["rows"]):
                found += _link_losses(setting, [row for row in record["rows"] if row["setting"] == setting])
    return found


def _link_losses(setting: str, rows: Sequence[Row]) -> Iterator[str]:
    # Where plain DDP was not run nobody is slower than it.
    slower = [row for row in rows if _is_ours(row) and row["mode"] != "none" and (row["x plain"] or 1) < 1]
    if slower:
        names = ", ".join(f"{row['mode']} ({row['x plain']:.2f} times its speed)" for row in slower)
        yield f"{setting}: slower than plain DDP: {names}."
    theirs = [row for row in rows if row["mode"].startswith(TORCH)]
    ours = [row for row in rows if _is_ours(row)]
    if theirs and ours:
        their_best, our_best = (min(side, key=lambda row: row["step ms"]) for side in (theirs, ours))
        if their_best["step ms"] < our_best["step ms"]:
            yield (
                f"{setting}: PyTorch's {their_best['mode'].removeprefix(TORCH)} hook takes "
                f"{their_best['step ms']:.0f} ms, our best, {our_best['mode']}, {our_best['step ms']:.0f} ms."
            )


def _is_ours(row: Row) -> bool:
    return row["mode"] not in (COMPUTE_ONLY, PLAIN) and not row["mode"].startswith(TORCH)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def main() -> int:
    sys.stdout.write(page([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
