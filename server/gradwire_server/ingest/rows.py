"""Records of a stream as rows of the tables."""

from typing import Any

import msgspec
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import Points, StepWindow

Row = dict[str, Any]


def window_row(batch: Batch, window: StepWindow, now: float) -> Row:
    """Return a window as a `step_windows` row of level 0, received at `now`.

    What a process had measured before it died is as old as it says: its receipt tells nothing of the present.
    """
    received_at = min(now, window.started_at + window.wall_seconds) if batch.is_late else now
    seconds = {f"{name}_seconds": value for name, value in msgspec.structs.asdict(window.seconds).items()}
    return {
        "run": batch.run,
        "attempt": batch.attempt,
        "model": batch.model,
        "node": batch.node,
        "level": 0,
        "first_step": window.first_step,
        "last_step": window.last_step,
        "num_windows": 1,
        "num_steps": window.num_steps,
        "num_rank_steps": window.num_rank_steps,
        "epoch": window.epoch,
        "codec": window.codec,
        "is_settling": window.is_settling,
        "is_check": window.is_check,
        "started_at": window.started_at,
        "received_at": received_at,
        "wall_seconds": window.wall_seconds,
        **seconds,
        "unknown_reason": window.unknown_reason,
        "step_seconds_min": window.step_seconds_min,
        "step_seconds_max": window.step_seconds_max,
        "logical_bytes": window.logical_bytes,
        "wire_bytes": window.wire_bytes,
        "samples": window.samples,
        "tokens": window.tokens,
        "ranks": [msgspec.to_builtins(rank) for rank in window.ranks] or None,
    }


def point_rows(batch: Batch, points: Points) -> list[Row]:
    """Return the values of a metric as `points` rows."""
    common = {
        "run": batch.run,
        "attempt": batch.attempt,
        "model": batch.model,
        "node": batch.node,
        "name": points.name,
        "is_evaluation": points.is_evaluation,
    }
    unknown = (None,) * len(points.steps)
    spread = zip(points.lows or unknown, points.highs or unknown, points.weights or unknown, strict=True)
    return [
        {
            **common,
            "step": step,
            "value": value,
            "kind": points.kinds.get(str(index)),
            "low": low,
            "high": high,
            "weight": weight,
        }
        for index, (step, value, (low, high, weight)) in enumerate(
            zip(points.steps, points.values, spread, strict=True)
        )
    ]
