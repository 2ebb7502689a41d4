"""Check windows as they are stored: uncompressed steps amid compressed ones, with their neighbours."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from sqlalchemy import Connection, or_, select

from gradwire_server.database.tables import step_windows
from gradwire_server.series.branches import on_line, window_line
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.series.windows import SUM_COLUMNS, Stretch, sums_of

# The newest are read: a verdict is about the network as it is, and reading more costs time.
MAX_CHECKS = 24
# Rows of a window: it is cut where the agent's windows of a second end.
_MAX_ROWS = 32 * MAX_CHECKS
# Steps of one window lie closer together than two windows ever do.
_MAX_GAP = 20


class Check(Struct, frozen=True, kw_only=True):
    """Uncompressed steps, and about as many compressed ones right before and after; the settling ones left out."""

    exact: StepSums
    before: StepSums | None
    after: StepSums | None

    @property
    def exact_seconds(self) -> float:
        """Mean seconds of training of one rank's uncompressed step."""
        return _mean(self.exact)

    @property
    def compressed_seconds(self) -> float:
        """Mean seconds of training of one rank's compressed step; a steady change of the run cancels out."""
        means = [_mean(part) for part in (self.before, self.after) if part is not None]
        return sum(means) / len(means)

    @property
    def is_complete(self) -> bool:
        """Whether there is enough on the compressed side to compare with."""
        num_steps = sum(part.num_steps for part in (self.before, self.after) if part is not None)
        return self.exact.num_rank_steps > 0 and num_steps >= self.exact.num_steps


def checks(connection: Connection, run: str, model: str, lossy: Stretch, start: int) -> list[Check]:
    """Return the complete check windows of a compressed stretch, oldest first.

    The last uncompressed steps before the codec came into use count as the first one.

    Args:
        connection: A reading connection.
        run: Id of the run.
        model: Name of the model.
        lossy: The settled steps with the codec.
        start: First step with the codec, settling or not.

    Cost: two queries and one for each window; they read at most some hundred rows of each node, whatever the run's
    length.
    """
    columns = step_windows.c
    is_here = (columns.run == run, columns.model == model, columns.level == 0, columns.attempt == lossy.attempt)
    newest = (
        select(*SUM_COLUMNS)
        .where(*is_here, columns.is_check, columns.epoch == lossy.epoch, columns.is_settling.is_(False))
        .group_by(columns.first_step)
        .order_by(columns.first_step.desc())
        .limit(_MAX_ROWS)
    )
    rows = [sums_of(row) for row in connection.execute(newest).mappings()]
    windows = _windows(reversed(rows))[-MAX_CHECKS:]
    size = max((window.num_steps for window in windows), default=_MAX_GAP)
    reach = size + 2 * lossy.steps_per_window + _MAX_GAP
    ends = [(window.first_step, window.last_step) for window in windows]
    near = select(*SUM_COLUMNS, columns.codec).where(*is_here, columns.is_check.is_(False))
    near = near.where(columns.is_settling.is_(False), or_(columns.epoch == lossy.epoch, columns.codec == "none"))
    near = near.group_by(columns.first_step, columns.codec).order_by(columns.first_step)
    found = [
        (row["codec"], sums_of(row))
        # A query for each range: of many ranges in one condition, databases read everything from first to last.
        for low, high in _ranges([(start, start - 1), *ends], reach)
        for row in connection.execute(near.where(columns.first_step.between(low, high))).mappings()
    ]
    compressed = [part for codec, part in found if codec == lossy.codec]
    exact = [part for codec, part in found if codec == "none"]
    first = _first(start, [part for part in exact if part.last_step < start], size)
    pairs = [_with_neighbours(window, compressed, size) for window in ([first] if first else []) + windows]
    return [pair for pair in pairs if pair.is_complete]


def check_steps(connection: Connection, run: str, model: str, *, limit: int) -> list[int]:
    """Return the steps at which the newest check windows of the default line began, ascending."""
    columns = step_windows.c
    legs = window_line(connection, run, model)
    statement = (
        select(columns.first_step)
        .where(
            columns.run == run,
            columns.model == model,
            columns.level == 0,
            columns.is_check,
            columns.is_settling,
            on_line(legs, columns.attempt, columns.first_step),
        )
        .distinct()
        .order_by(columns.first_step.desc())
        .limit(2 * limit)
    )
    begun: list[int] = []
    for step in reversed(connection.scalars(statement).all()):
        # The settling steps of a window may lie in two rows.
        if not begun or step - begun[-1] > _MAX_GAP:
            begun.append(step)
    return begun[-limit:]


def _windows(rows: Iterable[StepSums]) -> list[StepSums]:
    """Put the rows of each window together; ascending by step."""
    found: list[list[StepSums]] = []
    for row in rows:
        if found and row.first_step - found[-1][-1].last_step <= _MAX_GAP:
            found[-1].append(row)
        else:
            found.append([row])
    return [whole for parts in found if (whole := merge(parts)) is not None]


def _ranges(places: Iterable[tuple[int, int]], reach: int) -> list[tuple[int, int]]:
    """Return the steps within `reach` of the places, ascending, as ranges that do not overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(places):
        low, high = first - reach, last + reach
        if found and low <= found[-1][1]:
            low, high = found[-1][0], max(found[-1][1], high)
            found.pop()
        found.append((low, high))
    return found


def _first(start: int, exact: Sequence[StepSums], size: int) -> StepSums | None:
    """Return the last uncompressed steps before the codec came into use, None if others lie in between."""
    nearest = _gather(reversed(exact), size)
    return nearest if nearest is not None and start - nearest.last_step <= _MAX_GAP else None


def _with_neighbours(exact: StepSums, compressed: Sequence[StepSums], size: int) -> Check:
    reach = 2 * _MAX_GAP
    before = _gather((part for part in reversed(compressed) if part.last_step < exact.first_step), size)
    after = _gather((part for part in compressed if part.first_step > exact.last_step), size)
    if before is not None and exact.first_step - before.last_step > reach:
        before = None
    if after is not None and after.first_step - exact.last_step > reach:
        after = None
    return Check(exact=exact, before=before, after=after)


def _gather(parts: Iterable[StepSums], size: int) -> StepSums | None:
    """Return the sum of the first parts that have `size` steps together."""
    taken, num_steps = [], 0
    for part in parts:
        if num_steps >= size:
            break
        taken.append(part)
        num_steps += part.num_steps
    return merge(taken)


def _mean(part: StepSums) -> float:
    return part.training / max(1, part.num_rank_steps)
