"""bf16: half the bytes of float32 by a cast and a native all-reduce."""

from gradwire_compression.codecs.facts import CodecFacts

FACTS = CodecFacts("bf16", 16.0, is_lossy=True, has_residual=True)
