"""Ids of runs and attempts, and the rule for names."""

import secrets
import time
import unicodedata
import uuid

from gradwire_protocol import limits
from gradwire_protocol.errors import MalformedError


def new_id() -> str:
    """Return a UUID of version 7: random, and ordered by the time it was made.

    Source: RFC 9562, section 5.7. `uuid.uuid7` exists from Python 3.14 on.
    """
    milliseconds = time.time_ns() // 1_000_000
    bits = (milliseconds << 80) | secrets.randbits(80)
    bits = (bits & ~(0xF << 76)) | (0x7 << 76)
    bits = (bits & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=bits))


def validate_id(value: str, *, field: str) -> str:
    """Return the id in its usual lower-case form.

    Raises:
        MalformedError: It is not a UUID.
    """
    try:
        return str(uuid.UUID(value))
    except ValueError as error:
        raise MalformedError(f"{value[:60]!r} is not a UUID", field=field) from error


def validate_name(value: str, *, field: str) -> str:
    """Return the name unchanged if it can be stored, shown and linked everywhere.

    Raises:
        MalformedError: It is blank, too long, or holds control characters or lone surrogates.
    """
    if not value.strip():
        raise MalformedError("the name is blank; wanted: at least one visible character", field=field)
    if len(value) > limits.MAX_NAME_CHARACTERS:
        raise MalformedError(
            f"the name has {len(value)} characters; wanted: at most {limits.MAX_NAME_CHARACTERS}", field=field
        )
    for position, character in enumerate(value):
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise MalformedError(
                f"character {position} of the name is U+{ord(character):04X}; "
                "wanted: no control characters and no lone surrogates",
                field=field,
            )
    return value
