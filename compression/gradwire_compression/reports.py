"""Reports: what becomes of each parameter's gradient under the plan in use, for people to read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire_compression.buckets import BucketShape
from gradwire_compression.costs import Estimate
from gradwire_compression.plan import EXACT
from gradwire_compression.prepared import Prepared


@dataclass(frozen=True)
class TensorReport:
    """How one parameter's gradient travels."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    # The codec, or "exact".
    codec: str
    # Why it travels exactly; empty if it does not.
    reason: str
    # What one rank sends for it in one step, uncompressed and as it is; its share by elements of what its bucket
    # sends. None before its bucket was seen.
    exact_bytes: int | None
    sent_bytes: int | None


@dataclass(frozen=True)
class Explanation:
    """How all gradients travel."""

    codec: str
    # In the model's order.
    tensors: tuple[TensorReport, ...]
    # Buckets that have something to compress, and those of them that travel exactly because that is faster.
    num_buckets: int
    num_spared: int
    # What the spared ones should take, all of them together.
    exact_seconds: float
    lossy_seconds: float
    # Extra memory of this rank.
    memory_bytes: int


def explain(prepared: Prepared, parameters: Mapping[str, Tensor]) -> Explanation:
    """Return what becomes of the parameters' gradients; reads what any thread may read."""
    estimates = prepared.estimates
    spared = [one for one in estimates.values() if one.is_exact_faster]
    return Explanation(
        prepared.plan.codec,
        tuple(_tensors(prepared, parameters, estimates)),
        len(prepared.compressed) + len(spared),
        len(spared),
        sum(one.exact_seconds for one in spared),
        sum(one.lossy_seconds for one in spared),
        prepared.memory_bytes,
    )


def _tensors(
    prepared: Prepared, parameters: Mapping[str, Tensor], estimates: Mapping[int, Estimate]
) -> Iterator[TensorReport]:
    bucket_of = {slot.name: shape for shape in prepared.shapes for slot in shape.slots}
    for decision in prepared.plan.resolve(parameters.items()):
        parameter = parameters[decision.name]
        shape = bucket_of.get(decision.name)
        codec, reason = decision.codec, decision.reason
        if not reason and not prepared.is_compressed(decision.name):
            codec, reason = EXACT, _reason(prepared, shape, estimates)
        exact = None if shape is None else prepared.exact_bytes(parameter.numel() * shape.dtype.itemsize)
        sent = exact
        if shape is not None and codec != EXACT:
            sent = prepared.sent_bytes(shape, parameter.numel())
        dtype = str(parameter.dtype).removeprefix("torch.")
        yield TensorReport(decision.name, tuple(parameter.shape), dtype, codec, reason, exact, sent)


def _reason(prepared: Prepared, shape: BucketShape | None, estimates: Mapping[int, Estimate]) -> str:
    if prepared.codec is None:
        return "one process has nobody to send to"
    one = estimates.get(shape.index) if shape is not None else None
    if shape is None or one is None:
        return "its bucket is being dealt out anew"
    return (
        f"bucket {shape.index} should take {_milliseconds(one.exact_seconds)} uncompressed and "
        f"{_milliseconds(one.lossy_seconds)} with {prepared.plan.codec}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
