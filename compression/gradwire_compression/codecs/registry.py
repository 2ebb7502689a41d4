"""Which codecs there are, and how one is made from a plan's plain parameters."""

from collections.abc import Mapping

import torch

from gradwire_compression.codecs import bf16, fp8, fp16, int4, int8, onebit, powersgd, topk
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.facts import CodecFacts, Number
from gradwire_compression.codecs.powersgd import LowRankCodec

_NONE = CodecFacts("none", 32.0, is_lossy=False, has_residual=False)

_FACTS = {
    facts.name: facts
    for facts in (
        _NONE,
        bf16.FACTS,
        fp16.FACTS,
        int8.FACTS,
        fp8.FACTS,
        int4.FACTS,
        onebit.FACTS,
        topk.FACTS,
        powersgd.FACTS,
    )
}


def available() -> tuple[str, ...]:
    """Return the names of all codecs that this build can run."""
    return tuple(_FACTS)


def facts(name: str) -> CodecFacts:
    """Return what is known of a codec.

    Raises:
        KeyError: There is no such codec.
    """
    return _FACTS[name]


def make(
    name: str, parameters: Mapping[str, Number], device: torch.device
) -> ScaledCodec | CastCodec | LowRankCodec:
    """Return the lossy codec `name` for tensors on `device`.

    Raises:
        PlanError: It has no kernels for that device.
    """
    assert _FACTS[name].is_lossy
    if name in ("bf16", "fp16"):
        return CastCodec(name, device)
    if name == "powersgd":
        return LowRankCodec(int(parameters["rank"]), device)
    if name == "topk":
        return ScaledCodec(name, topk.BLOCK, device, num_scales=int(parameters["k"]))
    return ScaledCodec(name, int(parameters["block"]), device)
