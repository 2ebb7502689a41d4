"""The catalogue of codecs as data: names, parameters with their ranges, bits and what they are unsafe with.

The server validates choices and writes the control panel from it; a test proves it equal to the registry of codecs
in `compression`. Bits are per element of a full block, scales included, padding excluded.
"""

from collections.abc import Mapping

from msgspec import Struct

from gradwire_protocol.errors import MalformedError

Number = int | float


class ParameterSpec(Struct, frozen=True):
    """One plain parameter of a codec: its range (both ends included), its default and what more of it does."""

    name: str
    kind: str  # "int" or "float"
    default: Number
    low: Number
    high: Number
    direction: str
    # Values to offer, each with the share of the elements that it sends.
    presets: tuple[tuple[Number, float], ...] = ()


class CodecSpec(Struct, frozen=True):
    """One codec as both ends know it."""

    name: str
    # None where it depends on the shapes of the model's tensors.
    bits_per_element: float | None
    is_lossy: bool
    has_residual: bool
    parameters: tuple[ParameterSpec, ...] = ()
    # Optimizer classes under which the codec is accepted; empty means all of them.
    safe_optimizers: tuple[str, ...] = ()
    safe_alternative: str = ""


def _block(default: int) -> ParameterSpec:
    return ParameterSpec("block", "int", default, 64, 4096, "larger block, fewer scales")


CATALOGUE: dict[str, CodecSpec] = {
    spec.name: spec
    for spec in (
        CodecSpec("none", 32.0, is_lossy=False, has_residual=False),
        CodecSpec("bf16", 16.0, is_lossy=True, has_residual=True),
        CodecSpec("fp16", 16.0, is_lossy=True, has_residual=True),
        CodecSpec("int8", 8 + 16 / 256, is_lossy=True, has_residual=True, parameters=(_block(256),)),
        CodecSpec("fp8", 8 + 16 / 256, is_lossy=True, has_residual=True, parameters=(_block(256),)),
        CodecSpec("int4", 4 + 16 / 128, is_lossy=True, has_residual=True, parameters=(_block(128),)),
        CodecSpec(
            "onebit",
            1 + 16 / 1024,
            is_lossy=True,
            has_residual=True,
            parameters=(_block(1024),),
            safe_optimizers=("SGD",),
            safe_alternative="int8",
        ),
        CodecSpec(
            "topk",
            24 * 13 / 256,
            is_lossy=True,
            has_residual=True,
            parameters=(
                ParameterSpec(
                    "k",
                    "int",
                    13,
                    1,
                    128,
                    "larger k, less compression",
                    presets=((3, 0.01), (13, 0.05), (64, 0.25)),
                ),
            ),
        ),
        CodecSpec(
            "powersgd",
            None,
            is_lossy=True,
            has_residual=True,
            parameters=(ParameterSpec("rank", "int", 4, 1, 32, "higher rank, less compression"),),
        ),
    )
}


def validate_codec(name: str, parameters: Mapping[str, Number], *, field: str = "plan") -> dict[str, Number]:
    """Check a choice of codec against the catalogue and fill in the defaults.

    Args:
        name: Codec name as in `CATALOGUE`.
        parameters: Plain numbers by parameter name; absent ones take their default.
        field: Path of the plan in the message, for the error.

    Returns:
        All parameters of the codec, in catalogue order.

    Raises:
        MalformedError: The codec is unknown, a parameter is unknown, or a value is outside its range.
    """
    spec = CATALOGUE.get(name)
    if spec is None:
        raise MalformedError(
            f"codec {name!r} is unknown; known codecs are {', '.join(CATALOGUE)}", field=f"{field}.codec"
        )
    known = {parameter.name: parameter for parameter in spec.parameters}
    for key in parameters:
        if key not in known:
            raise MalformedError(
                f"codec {name} has no parameter {key!r}; it has {', '.join(known) or 'none'}",
                field=f"{field}.parameters.{key}",
            )
    return {key: _validate(known[key], parameters.get(key), name, field) for key in known}


def _validate(spec: ParameterSpec, value: Number | None, codec: str, field: str) -> Number:
    if value is None:
        return spec.default
    is_right_kind = isinstance(value, int) or (spec.kind == "float" and isinstance(value, float))
    if isinstance(value, bool) or not is_right_kind or not spec.low <= value <= spec.high:
        raise MalformedError(
            f"{codec}.{spec.name} is {value!r}; wanted: {spec.kind} from {spec.low} to {spec.high}",
            field=f"{field}.parameters.{spec.name}",
        )
    return value
