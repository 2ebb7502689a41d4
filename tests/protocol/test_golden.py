"""What version 1 wrote is read for ever: the files in `golden/v1` never change, only new ones are added."""

from pathlib import Path

import msgspec
import pytest
from gradwire_protocol import coding
from gradwire_protocol.messages import PROTOCOL
from protocol.messages import MESSAGES

GOLDEN = Path(__file__).parent / "golden" / "v1"


@pytest.mark.parametrize("name", MESSAGES)
def test_version_1_is_read_to_the_same_values(name: str) -> None:
    kind, message = MESSAGES[name]
    assert coding.decode((GOLDEN / f"{name}.json").read_bytes(), kind) == message


@pytest.mark.parametrize("name", MESSAGES)
def test_what_version_1_wrote_is_still_written(name: str) -> None:
    """Fields may be added, with a default; what was there keeps its name, type and value."""
    _, message = MESSAGES[name]
    assert _contains(msgspec.json.decode(coding.encode(message)), msgspec.json.decode(_golden(name)))


def test_every_golden_file_is_read() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(MESSAGES)
    assert PROTOCOL == 1


def _golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def _contains(now: object, then: object) -> bool:
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and _contains(now[key], then[key]) for key in then)
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(_contains, now, then))
    return now == then
