"""int8: a quarter of the bytes of float32, symmetric, one scale a block."""

from gradwire_compression.codecs.facts import CodecFacts, block_parameter

FACTS = CodecFacts("int8", 8 + 16 / 256, is_lossy=True, has_residual=True, parameters=(block_parameter(256),))
