"""The plan as it travels: a codec by name with plain numbers, exemptions and warm-up."""

from typing import Literal, get_args

from msgspec import Struct, field

from gradwire_protocol import limits
from gradwire_protocol.codecs import Number, validate_codec
from gradwire_protocol.errors import MalformedError

ExchangeChoice = Literal["auto", "flat", "hierarchical", "hybrid"]
EXCHANGES: tuple[str, ...] = get_args(ExchangeChoice)


class PlanSpec(Struct, frozen=True, kw_only=True):
    """What every rank does with its gradients; equal on all ranks of a model."""

    codec: str = "none"
    parameters: dict[str, Number] = field(default_factory=dict)
    # Tensors with at most one dimension (norms, biases) travel uncompressed.
    exempt_1d: bool = True
    # Tensors below this many elements travel uncompressed.
    min_elements: int = 1024
    # Glob patterns of parameter names that travel uncompressed.
    exempt_patterns: tuple[str, ...] = ()
    # Uncompressed synchronised steps, counted from attach, before the codec is used.
    warmup_steps: int = 0
    # "hierarchical": exact inside nodes, compressed across; "hybrid": the same, but bfloat16 inside nodes whatever
    # the gradients are; "flat": compressed between all ranks. "auto" is "hierarchical"; both and "hybrid" fall back
    # to flat where the nodes do not allow them.
    exchange: ExchangeChoice = "auto"
    # Compress every bucket, also those that should be faster uncompressed by what was measured.
    every_bucket: bool = False
    # Accept the codec under an optimizer it is not known to be safe with.
    force: bool = False


def validate_plan(plan: PlanSpec, *, field: str = "plan") -> PlanSpec:
    """Return the plan with every parameter filled in.

    Raises:
        MalformedError: A value is out of range; the error's field names it.
    """
    for name in ("min_elements", "warmup_steps"):
        value = getattr(plan, name)
        if not 0 <= value <= limits.MAX_INTEGER:
            raise MalformedError(f"{name} is {value}; wanted: 0 or more", field=f"{field}.{name}")
    if plan.exchange not in EXCHANGES:
        raise MalformedError(
            f"exchange is {str(plan.exchange)[:60]!r}; wanted: one of {', '.join(EXCHANGES)}",
            field=f"{field}.exchange",
        )
    if len(plan.exempt_patterns) > limits.MAX_EXEMPT_PATTERNS:
        raise MalformedError(
            f"{len(plan.exempt_patterns)} patterns; wanted: at most {limits.MAX_EXEMPT_PATTERNS}",
            field=f"{field}.exempt_patterns",
        )
    for pattern in plan.exempt_patterns:
        if not 0 < len(pattern) <= limits.MAX_NAME_CHARACTERS:
            raise MalformedError(
                f"a pattern has {len(pattern)} characters; wanted: 1 to {limits.MAX_NAME_CHARACTERS}",
                field=f"{field}.exempt_patterns",
            )
    parameters = validate_codec(plan.codec, plan.parameters, field=field)
    return PlanSpec(
        codec=plan.codec,
        parameters=parameters,
        exempt_1d=plan.exempt_1d,
        min_elements=plan.min_elements,
        exempt_patterns=plan.exempt_patterns,
        warmup_steps=plan.warmup_steps,
        exchange=plan.exchange,
        every_bucket=plan.every_bucket,
        force=plan.force,
    )
