"""What `gradwire plan show` prints: every tensor, what becomes of its gradient, and why."""

from collections.abc import Iterable

from gradwire.transport.local import NodeStatus, PlanPage, TensorPlan
from gradwire.wording import aligned, codec_name, number, processes

_HEADINGS = ("TENSOR", "SHAPE", "TYPE", "SENT AS", "BEFORE", "SENT", "WHY NOT COMPRESSED")
_PREFIXES = ("B", "kB", "MB", "GB", "TB", "PB")


def plan_table(status: NodeStatus, page: PlanPage, *, is_one_of_many: bool) -> str:
    """Return the plan in use: a line for each tensor, then what a process sends in a step and the memory."""
    prefix = f"{status.model} of " if is_one_of_many else ""
    since = f" since step {number(status.since_step)}" if status.since_step else ""
    whom = processes(status.device, status.world_size)
    head = f"{prefix}{status.run_name}: {codec_name(page.codec)} on {whom}{since}"
    return "\n".join([head, "", *_table(page.tensors), "", *_summary(status, page)])


def size(num_bytes: float) -> str:
    """Return a number of bytes in decimal units."""
    power = 0
    while num_bytes >= 999.5 and power < len(_PREFIXES) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    digits = 0 if power == 0 or num_bytes >= 99.95 else 1 if num_bytes >= 9.995 else 2
    return f"{num_bytes:.{digits}f} {_PREFIXES[power]}"


def _table(tensors: Iterable[TensorPlan]) -> list[str]:
    return aligned([_HEADINGS, *map(_row, tensors)])


def _row(tensor: TensorPlan) -> tuple[str, ...]:
    return (
        tensor.name,
        " x ".join(map(str, tensor.shape)) or "scalar",
        tensor.dtype,
        "uncompressed" if tensor.codec == "exact" else tensor.codec,
        "not yet known" if tensor.exact_bytes is None else size(tensor.exact_bytes),
        "not yet known" if tensor.sent_bytes is None else size(tensor.sent_bytes),
        tensor.reason,
    )


def _summary(status: NodeStatus, page: PlanPage) -> list[str]:
    word = "GPU" if status.device == "cuda" else "process"
    lines = [*_sent(page, word)]
    if page.num_spared:
        lines.append(
            f"{page.num_spared} of {page.num_buckets} buckets travel uncompressed, which should be faster: "
            f"{_milliseconds(page.exact_seconds)} against {_milliseconds(page.lossy_seconds)} with {page.codec}."
        )
    if page.codec != "none":
        lines.append(f"Extra memory on each {word}: {size(page.memory_bytes)}.")
    others = [
        f"{name} {size(taken)}"
        for name, taken in page.codec_memory_bytes.items()
        if name not in ("none", page.codec)
    ]
    if others:
        lines.append(f"Others would take: {', '.join(others)}.")
    return lines


def _sent(page: PlanPage, word: str) -> list[str]:
    known = [one for one in page.tensors if one.exact_bytes is not None and one.sent_bytes is not None]
    if not known:
        return ["What is sent is known after the first step."]
    before, sent = sum(one.exact_bytes or 0 for one in known), sum(one.sent_bytes or 0 for one in known)
    if not sent or before == sent:
        return [f"Each {word} sends {size(sent)} a step."]
    dtypes = " and ".join(dict.fromkeys(one.dtype for one in known))
    return [
        f"Each {word} sends {size(sent)} a step instead of {size(before)} of {dtypes}: "
        f"{before / sent:.1f} times fewer bytes."
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
