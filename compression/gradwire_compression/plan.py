"""The plan: which codec averages which tensor, as plain values that are equal on all ranks."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire_compression.codecs import powersgd, registry
from gradwire_compression.codecs.facts import Number, ParameterFacts
from gradwire_compression.errors import PlanError
from gradwire_compression.hashing import hash_json

EXACT = "exact"
EXCHANGES = ("auto", "flat", "hierarchical", "hybrid")

# What codecs read.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Decision:
    """What a plan does with one tensor; `reason` says why it travels uncompressed, empty if it does not."""

    name: str
    numel: int
    codec: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every rank does with its gradients; valid once constructed, with all codec parameters filled in.

    Raises:
        PlanError: The codec or a parameter is unknown, or a value is out of range.
    """

    codec: str = "none"
    parameters: Mapping[str, Number] = field(default_factory=dict)
    # Tensors with at most one dimension (norms, biases) travel uncompressed.
    exempt_1d: bool = True
    # Tensors below this many elements travel uncompressed.
    min_elements: int = 1024
    # Glob patterns of parameter names that travel uncompressed.
    exempt_patterns: tuple[str, ...] = ()
    # Uncompressed synchronised steps, counted from the exchange's first, before the codec is used.
    warmup_steps: int = 0
    # "hierarchical": exact inside nodes, compressed across; "hybrid": the same, but bfloat16 inside nodes whatever
    # the gradients are; "flat": compressed between all ranks. "auto" is "hierarchical"; both and "hybrid" fall back
    # to flat where the nodes do not allow them, and the exchange says why.
    exchange: str = "auto"
    # Compress every bucket, also those that should be faster uncompressed by what was measured.
    every_bucket: bool = False
    # Accept the codec under an optimizer it is not known to be safe with.
    force: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "exempt_patterns", tuple(self.exempt_patterns))
        object.__setattr__(self, "parameters", _fill_in(self.codec, self.parameters))
        for name in ("min_elements", "warmup_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise PlanError(f"{name} is {value!r}; wanted: an integer of 0 or more")
        if self.exchange not in EXCHANGES:
            raise PlanError(f"exchange is {self.exchange!r}; wanted: one of {', '.join(EXCHANGES)}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Return the plan with these fields; absent ones take their default.

        Raises:
            PlanError: A field is unknown or not acceptable.
        """
        known = [entry.name for entry in fields(cls)]
        for name in values:
            if name not in known:
                raise PlanError(f"a plan has no field {name!r}; it has {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values that `from_dict` turns into an equal plan."""
        return {**asdict(self), "parameters": dict(self.parameters), "exempt_patterns": list(self.exempt_patterns)}

    def hash(self) -> int:
        """Return a number below 2**48 that is equal for equal plans in every process."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Every pulse asks for it, and to make it costs as much as to send the pulse.
        return hash_json(self.to_dict())

    def resolve(self, named_parameters: Iterable[tuple[str, Tensor]]) -> list[Decision]:
        """Return the decision for every tensor, in the given order."""
        return [self.decide(name, parameter) for name, parameter in named_parameters]

    def decide(self, name: str, parameter: Tensor) -> Decision:
        """Return what happens to the gradient of one tensor."""
        reason = self._exact_reason(name, parameter)
        return Decision(name, parameter.numel(), EXACT if reason else self.codec, reason)

    def _exact_reason(self, name: str, parameter: Tensor) -> str:
        if self.codec == "none":
            return "the codec is none"
        if parameter.dtype not in _DTYPES:
            return f"{parameter.dtype} is averaged as it is"
        if self.exempt_1d and parameter.dim() <= 1:
            return "at most one dimension"
        if parameter.numel() < self.min_elements:
            return f"fewer than {self.min_elements} elements"
        for pattern in self.exempt_patterns:
            if fnmatchcase(name, pattern):
                return f"matches {pattern}"
        if self.codec == "powersgd":
            return powersgd.exact_reason(parameter, int(self.parameters["rank"]))
        return ""


def optimizer_class_name(optimizer: Optimizer) -> str:
    """Return the name under which plans know the optimizer's class.

    That is "SGD" for `torch.optim.SGD` and so on for torch's own classes, and "module.Class" for everything else,
    so that a subclass with other arithmetic is not taken for its parent.
    """
    kind = type(optimizer)
    is_torch = kind.__module__.startswith("torch.optim.")
    return kind.__qualname__ if is_torch else f"{kind.__module__}.{kind.__qualname__}"


def check_optimizer(plan: Plan, optimizer_class: str | None) -> None:
    """Refuse a codec under an optimizer that it is not known to be safe with, unless the plan is forced.

    Raises:
        PlanError: Names the safe alternative.
    """
    facts = registry.facts(plan.codec)
    if not facts.safe_optimizers or plan.force or optimizer_class in facts.safe_optimizers:
        return
    met = f"under {optimizer_class}" if optimizer_class else "under an unknown optimizer"
    raise PlanError(
        f"{plan.codec} is not safe {met}: it is accepted for {', '.join(facts.safe_optimizers)} only; "
        f"use {facts.safe_alternative}, or force it if you know better"
    )


def _fill_in(codec: str, parameters: Mapping[str, Number]) -> dict[str, Number]:
    if codec not in registry.available():
        raise PlanError(f"codec {codec!r} is unknown; known codecs are {', '.join(registry.available())}")
    known = {entry.name: entry for entry in registry.facts(codec).parameters}
    for name in parameters:
        if name not in known:
            raise PlanError(f"codec {codec} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
    return {name: _check(codec, entry, parameters.get(name, entry.default)) for name, entry in known.items()}


def _check(codec: str, facts: ParameterFacts, value: Number) -> Number:
    is_right_kind = isinstance(value, int) or (facts.kind == "float" and isinstance(value, float))
    if isinstance(value, bool) or not is_right_kind or not facts.low <= value <= facts.high:
        wanted = f"{facts.kind} from {facts.low} to {facts.high}"
        raise PlanError(f"{codec}.{facts.name} is {value!r}; wanted: {wanted}")
    return value
