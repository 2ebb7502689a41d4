"""fp8: a quarter of the bytes of float32 as scaled e4m3 floats, finer than int8 where most values are small."""

from gradwire_compression.codecs.facts import CodecFacts, block_parameter

FACTS = CodecFacts("fp8", 8 + 16 / 256, is_lossy=True, has_residual=True, parameters=(block_parameter(256),))
