"""What a server's database file holds, read from outside."""

import json
import sqlite3
from pathlib import Path
from typing import Any


def rows(path: Path, query: str, *parameters: object) -> list[dict[str, Any]]:
    """Return the rows of a query by column name."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, parameters)]
    finally:
        connection.close()


def count(path: Path, table: str, run: str) -> int:
    """Return how many rows of a run a table has; of windows those that were sent."""
    where = " AND level = 0" if table == "step_windows" else ""
    return int(rows(path, f"SELECT count(*) AS n FROM {table} WHERE run = ?{where}", run)[0]["n"])


def run_row(path: Path, run: str) -> dict[str, Any]:
    return rows(path, "SELECT * FROM runs WHERE id = ?", run)[0]


def model_row(path: Path, run: str, model: str = "model") -> dict[str, Any]:
    row = rows(path, "SELECT * FROM models WHERE run = ? AND name = ?", run, model)[0]
    return {**row, "plan": json.loads(row["plan"]), "facts": json.loads(row["facts"])}


def history(path: Path, run: str) -> list[dict[str, Any]]:
    """Return a run's events, oldest first."""
    found = rows(path, "SELECT * FROM events WHERE run = ? ORDER BY number", run)
    return [{**row, "data": json.loads(row["data"])} for row in found]


def kinds(path: Path, run: str) -> list[str]:
    return [event["kind"] for event in history(path, run)]


def directive_states(path: Path, run: str) -> list[str]:
    return [row["state"] for row in rows(path, "SELECT state FROM directives WHERE run = ? ORDER BY revision", run)]
