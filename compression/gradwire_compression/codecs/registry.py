"""Which codecs there are, and how one is made from a plan's plain parameters."""

from gradwire_compression.codecs.facts import CodecFacts, block_parameter

_FACTS = {
    facts.name: facts
    for facts in (
        CodecFacts("none", 32.0, is_lossy=False, has_residual=False),
        CodecFacts("bf16", 16.0, is_lossy=True, has_residual=True),
        CodecFacts("int8", 8 + 16 / 256, is_lossy=True, has_residual=True, parameters=(block_parameter(256),)),
        CodecFacts(
            "onebit",
            1 + 16 / 1024,
            is_lossy=True,
            has_residual=True,
            parameters=(block_parameter(1024),),
            safe_optimizers=("SGD",),
            safe_alternative="int8",
        ),
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
