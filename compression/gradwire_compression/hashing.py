"""Numbers that stand for values when ranks compare what they hold."""

import hashlib
import json

# Hashes travel in a float64 all-reduce, which holds integers below 2**53 exactly.
HASH_BITS = 48


def hash_json(value: object) -> int:
    """Return a number below 2**48 that depends on the JSON form of `value` alone."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[: HASH_BITS // 8], "big")
