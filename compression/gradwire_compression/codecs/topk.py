"""topk: the largest elements of every 256, the sparse scheme; the rest waits in the residual."""

from gradwire_compression.codecs.facts import CodecFacts, ParameterFacts

# An index within a block is one byte.
BLOCK = 256

FACTS = CodecFacts(
    "topk",
    24 * 13 / BLOCK,
    is_lossy=True,
    has_residual=True,
    parameters=(
        ParameterFacts(
            "k",
            "int",
            13,
            1,
            128,
            "larger k, less compression",
            presets=((3, 0.01), (13, 0.05), (64, 0.25)),
        ),
    ),
)
