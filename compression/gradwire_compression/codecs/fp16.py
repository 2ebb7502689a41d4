"""fp16: half the bytes of float32, finer than bf16 because a power of two keeps it within its narrow range."""

from gradwire_compression.codecs.facts import CodecFacts

FACTS = CodecFacts("fp16", 16.0, is_lossy=True, has_residual=True)
