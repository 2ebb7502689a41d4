"""Which run an attach belongs to: models of one process share it, and torchrun's restarts go on with it."""

import contextlib
import hashlib
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gradwire_protocol.errors import ProtocolError
from gradwire_protocol.identity import validate_id

from gradwire.settings import Settings

# Longest that a launch may last whose restarts still find their run.
_KEEP_SECONDS = 90 * 24 * 3600.0


@dataclass
class Attempt:
    """An attempt that this process takes part in, while none of its sessions is closed."""

    run: str
    attempt: str
    # (run name, project, global ranks), the same for all its models.
    place: tuple[str, str, tuple[int, ...]]
    models: set[str] = field(default_factory=set)


_present: list[Attempt] = []
_num_begun: Counter[tuple[str, str]] = Counter()


def shared_attempt(settings: Settings, ranks: tuple[int, ...]) -> Attempt | None:
    """Return the attempt that a further model of this process joins, None if it begins one."""
    for attempt in _present:
        is_same = attempt.place == (settings.run, settings.project, ranks)
        if is_same and settings.model not in attempt.models and settings.run_id in (None, attempt.run):
            return attempt
    return None


def remembered_run(settings: Settings) -> str | None:
    """Return the run that this launch had begun at this place before its processes were started anew."""
    path = _memory(settings)
    if path is None:
        return None
    try:
        return validate_id(path.read_text(), field="run")
    except (OSError, UnicodeDecodeError, ProtocolError):
        return None


def begin(settings: Settings, ranks: tuple[int, ...], run: str, attempt: str) -> None:
    """Note that a session belongs to this attempt, for further models and for a restart."""
    present = next((one for one in _present if one.attempt == attempt), None)
    if present is None:
        present = Attempt(run, attempt, (settings.run, settings.project, ranks))
        _present.append(present)
        _remember(settings, run)
        _num_begun[settings.run, settings.project] += 1
    present.models.add(settings.model)


def end(attempt: str) -> None:
    """Note that a session of this attempt is closed: what is attached from now on begins another."""
    _present[:] = [one for one in _present if one.attempt != attempt]


def _remember(settings: Settings, run: str) -> None:
    path = _memory(settings)
    if path is None:
        return
    # Without the memory a restart is a run of its own, which is no reason to stop training.
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(run)
        draft.replace(path)
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > _KEEP_SECONDS:
                other.unlink()


def _memory(settings: Settings) -> Path | None:
    """Return the file of this launch and place; None without torchrun."""
    launch = _launch()
    if launch is None:
        return None
    ordinal = _num_begun[settings.run, settings.project]
    parts = (socket.gethostname(), launch, settings.project, settings.run, str(ordinal))
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return settings.spool / "launches" / digest


def _launch() -> str | None:
    """Return what all restarts of one torchrun have in common on this node, and no other torchrun has.

    Its id will not do: people give jobs the same one, and without one it is "none". Each torchrun makes a folder of
    a random name for its workers' errors: .../FOLDER/attempt_0/RANK/error.json.
    """
    errors = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not errors or len(Path(errors).parents) < 3:
        return None
    return str(Path(errors).parents[2])
