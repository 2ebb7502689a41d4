"""onebit: a thirtieth of the bytes of float32, safe only where the update is linear in the gradient."""

from gradwire_compression.codecs.facts import CodecFacts, block_parameter

# Adaptive optimizers square the gradient, and the square of a sign is one: Adam diverges on one-bit gradients.
FACTS = CodecFacts(
    "onebit",
    1 + 16 / 1024,
    is_lossy=True,
    has_residual=True,
    parameters=(block_parameter(1024),),
    safe_optimizers=("SGD",),
    safe_alternative="int8",
)
