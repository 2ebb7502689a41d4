"""What every benchmark shares: its options, the machine's description, the table and the JSON file."""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure that is promised somewhere, and whether this run kept the promise."""

    value: Any
    want: str
    ok: bool


@dataclass(frozen=True)
class Result:
    """What a benchmark measured."""

    rows: Sequence[Row]
    targets: dict[str, Target]


def main(bench: str, measure: Callable[[bool], Result]) -> int:
    """Run one benchmark from the command line.

    Args:
        bench: Its name, as in `python -m bench.NAME`.
        measure: Takes whether to be quick (60 s at most) and returns the figures; it checks first that what it
            measures is correct, and raises otherwise.

    Returns:
        Exit status: 1 if a target was missed.
    """
    options = parser(bench).parse_args()
    return report(bench, measure(options.quick), options.json)


def parser(bench: str) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{bench}")
    made.add_argument("--quick", action="store_true", help="end within 60 seconds, with fewer repetitions")
    made.add_argument("--json", type=Path, metavar="FILE", help="write date, machine, rows and targets there")
    return made


def report(bench: str, result: Result, file: Path | None) -> int:
    """Print the table and the targets, write the file if one is named; return the exit status."""
    print(_table(result.rows))
    for name, target in result.targets.items():
        print(f"{'ok    ' if target.ok else 'MISSED'} {name}: {target.value} (wanted: {target.want})")
    if file:
        file.write_text(json.dumps(_record(bench, result)) + "\n")
    return 0 if all(target.ok for target in result.targets.values()) else 1


def machine() -> str:
    """Describe this machine in a few words."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return (
        f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )


def _record(bench: str, result: Result) -> Row:
    return {
        "bench": bench,
        "options": _without_file(sys.argv[1:]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "rows": list(result.rows),
        "targets": {name: asdict(target) for name, target in result.targets.items()},
    }


def _without_file(arguments: Sequence[str]) -> list[str]:
    """Return the options that change what is measured."""
    found = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    found.add_argument("--json")
    return found.parse_known_args(arguments)[1]


def _table(rows: Sequence[Row]) -> str:
    columns = list(rows[0])
    cells = [columns, *([cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells
    )


def cell(value: object) -> str:
    """Return a figure as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
