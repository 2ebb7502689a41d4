"""The sentences of the `gradwire` command, in the words of the pages."""

from collections.abc import Sequence
from pathlib import Path

from gradwire_protocol.messages import Directive
from gradwire_protocol.records import AttemptEnded, AttemptStarted, Switched

from gradwire.client import Change, Run, RunPage
from gradwire.transport.local import NodeStatus
from gradwire.transport.operator import LocalRollback
from gradwire.transport.place import StreamFacts
from gradwire.transport.reporter import DeliverySummary


def printable(text: str) -> str:
    """Return the text without what could steer a terminal; lines are kept."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


def runs_table(runs: Sequence[Run]) -> str:
    """Return one line per run, columns aligned."""
    if not runs:
        return "No runs yet."
    rows = [("RUN", "NAME", "STATUS", "METHOD", "STEP", "PROCESSES", "WORTH IT?")]
    rows += [
        (
            run.id,
            run.name,
            run.status.name,
            codec_name(run.codec),
            number(run.step) + (f"/{number(run.total_steps)}" if run.total_steps else ""),
            str(run.world_size),
            run.verdict.kind.replace("_", " "),
        )
        for run in runs
    ]
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return one line a row, with columns aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def run_page(page: RunPage) -> str:
    """Return a run's state in a few lines."""
    run = page.summary
    total = f" of {number(run.total_steps)}" if run.total_steps else ""
    detail = f" ({run.status.detail})" if run.status.detail else ""
    share = run.verdict.share.value
    waiting = (
        "" if share is None else f" {100 * share:.0f} % of every step is spent waiting for gradients to travel."
    )
    reason = f": {run.verdict.reason}" if run.verdict.reason else ""
    lines = [
        f"{run.name} ({run.id})",
        f"Status: {run.status.name}{detail}, step {number(run.step)}{total}, "
        f"{processes(run.device, run.world_size)}",
        f"Compression: {codec_name(run.codec)} since step {number(page.codec_since_step)}, "
        f"confirmed by {page.num_ranks_confirmed} of {run.world_size}",
        f"Worth it? {run.verdict.kind.replace('_', ' ').capitalize()}{reason}.{waiting}",
    ]
    if page.last_change is not None:
        lines.append(f"Last change: {outcome(run, page.last_change)}")
    if not page.is_steered:
        lines.append("This run is measured only; its compression cannot be changed from here.")
    return "\n".join(lines)


def outcome(run: Run, change: Change) -> str:
    """Return what became of a change."""
    wish = "Rollback" if change.kind == "rollback" else f"Change to {codec_name(change.codec)}"
    match change.state:
        case "applied":
            since = "" if change.step is None else f" since step {number(change.step)}"
            after = "" if change.seconds is None else f", {change.seconds:.1f} s after the request"
            return f"{_capital(change.codec)} on {_all(run.device, change.num_ranks_confirmed)}{since}{after}."
        case "rejected":
            why = "; ".join(f"process {one.rank} on {one.host} refused: {one.reason}" for one in change.refusals)
            return f"Not applied. {why or 'The training refused'}. {_capital(run.codec)} stays everywhere."
        case "superseded":
            return f"Not applied. {wish} (change no. {change.revision}) was replaced by a later change."
        case "expired":
            return f"Not applied. {wish} (change no. {change.revision}) expired: the training ended or restarted."
        case _:
            by = f" by {change.author}" if change.author else ""
            return f"{wish} requested{by}; waiting for the training to answer."


def no_answer(run: Run, directive: Directive, timeout_seconds: float) -> str:
    """Return what to say when the training did not answer in time."""
    text = f"No answer for {timeout_seconds:g} s (change no. {directive.revision} of {run.name})."
    if directive.kind != "rollback":
        return f"{text} It stays requested; `gradwire status {run.id}` shows how it ends."
    return f"{text} Compression may still be on. On any node of this run type: gradwire rollback --local"


def no_local_answer(status: NodeStatus, result: LocalRollback) -> str:
    """Return what to say when a node knows of the rollback and its ranks did not switch in time."""
    return (
        f"No answer for {result.seconds:.0f} s: {status.run_name} was asked and is not uncompressed yet. "
        "It goes back at its next synchronised step; a run that stands still stays as it is."
    )


def local_outcome(status: NodeStatus, switched: Switched, result: LocalRollback, *, is_one_of_many: bool) -> str:
    """Return what became of a local rollback."""
    prefix = f"{status.model}: " if is_one_of_many else ""
    if result.codec_before == "none":
        return f"{prefix}Already uncompressed since step {number(switched.step)}."
    whom = _all(status.device, switched.num_ranks)
    return f"{prefix}Uncompressed on {whom} since step {number(switched.step)}, {result.seconds:.1f} s."


def synced(facts: StreamFacts, result: DeliverySummary | str) -> str:
    """Return what became of one stream's leftovers."""
    name = f"{facts.started.run_name} ({facts.run}), node {facts.node}"
    if isinstance(result, str):
        return f"{name}: left alone, {result}."
    dropped = f" {number(result.num_dropped)} had been dropped." if result.num_dropped else ""
    if result.num_undelivered:
        left = f"{number(result.num_undelivered)} still wait in {result.spool_path}"
        return f"{name}: {number(result.num_delivered)} measurements delivered, {left}.{dropped}"
    return f"{name}: {number(result.num_delivered)} measurements delivered, nothing is left.{dropped}"


def attached(started: AttemptStarted, run: str, server: str | None, spool: Path) -> str:
    """Return the console's line when training begins: what is attached, and where to look."""
    whom = processes(started.device, started.world_size)
    state = codec_name(started.plan.codec) if started.is_steered else "measured only"
    where = f"{server}/runs/{run}" if server else f"no server is set, measurements are kept in {spool}"
    return f"attached to {started.run_name} on {whom}, {state}: {where}"


def ended(run_name: str, how: AttemptEnded, summary: DeliverySummary) -> str:
    """Return the console's line when training ends: how, and what became of the measurements."""
    text = f"{run_name} {how.status} after step {number(how.last_step)}"
    parts = [f"{number(summary.num_delivered)} measurements delivered"] if summary.num_delivered else []
    if summary.spool_path is not None:
        waiting = f"{number(summary.num_undelivered)} measurements wait in {summary.spool_path}"
        parts.append(f"{waiting} until `gradwire sync` delivers them")
    if summary.num_dropped:
        parts.append(f"{number(summary.num_dropped)} were dropped")
    return f"{text}: {', '.join(parts)}" if parts else text


def number(value: int) -> str:
    """Return a number with spaces between thousands, as the pages write it."""
    return f"{value:,}".replace(",", " ")


def codec_name(codec: str) -> str:
    """Return the method inside a sentence."""
    return "uncompressed" if codec == "none" else codec


def _capital(codec: str) -> str:
    """Return the method as a sentence begins; names of codecs keep their case."""
    return "Uncompressed" if codec == "none" else codec


def _all(device: str, count: int) -> str:
    return f"the only {_word(device)}" if count == 1 else f"all {processes(device, count)}"


def processes(device: str, count: int) -> str:
    """Return a number of GPUs, or of processes where training runs on CPU."""
    plural = "GPUs" if device == "cuda" else "processes"
    return f"1 {_word(device)}" if count == 1 else f"{number(count)} {plural}"


def _word(device: str) -> str:
    return "GPU" if device == "cuda" else "process"
