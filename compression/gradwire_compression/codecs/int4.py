"""int4: an eighth of the bytes of float32, symmetric, one scale a block."""

from gradwire_compression.codecs.facts import CodecFacts, block_parameter

FACTS = CodecFacts("int4", 4 + 16 / 128, is_lossy=True, has_residual=True, parameters=(block_parameter(128),))
