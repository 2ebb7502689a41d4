"""The operator's end of a node's socket: find live nodes on this machine, ask them, roll back without a server."""

import contextlib
import socket
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec
from gradwire_protocol.messages import ErrorDetail
from gradwire_protocol.records import Switched
from msgspec import Struct
from msgspec.structs import replace

from gradwire.errors import AnswerError, UnreachableError
from gradwire.transport import place
from gradwire.transport.local import Asked, Command, Denied, Inlet, NodeStatus, Outcome, PlanPage, Reply, pack

_ANSWER_SECONDS = 5.0


class _LateError(UnreachableError):
    """Raised when a node did not answer in time."""


class LiveNode(Struct, frozen=True):
    """A node that answers on its socket."""

    socket: Path
    status: NodeStatus


class LocalRollback(Struct, frozen=True):
    """How a local rollback went: the codec before it, the switch, and how long it took.

    `switched` is None where the ranks know of it and have not switched yet.
    """

    codec_before: str
    switched: Switched | None
    seconds: float


def find_nodes(roots: Sequence[Path]) -> list[LiveNode]:
    """Return the nodes on this machine whose streams lie below `roots` and whose process answers."""
    found = []
    for root in roots:
        for _, facts in place.find_streams(root):
            if facts.socket:
                with contextlib.suppress(UnreachableError):
                    found.append(LiveNode(Path(facts.socket), ask_status(Path(facts.socket))))
    return found


def ask_status(path: Path) -> NodeStatus:
    """Return the state of the node that listens at `path`.

    Raises:
        UnreachableError: Nobody answers there, or not as a node does.
    """
    with contextlib.closing(_converse(path, Command("status"), _ANSWER_SECONDS)) as replies:
        reply = next(replies)
    if not isinstance(reply, NodeStatus):
        raise UnreachableError(f"{path} answers with a {type(reply).__name__}")
    return reply


def ask_plan(path: Path) -> PlanPage:
    """Return the plan in use at the node that listens at `path`, with all its tensors.

    Raises:
        UnreachableError: Nobody answers there, or not as a node does.
        AnswerError: The node denies.
    """
    pages = [_ask_page(path, 0)]
    while sum(len(page.tensors) for page in pages) < pages[0].num_tensors and pages[-1].tensors:
        pages.append(_ask_page(path, sum(len(page.tensors) for page in pages)))
    return replace(pages[-1], tensors=tuple(tensor for page in pages for tensor in page.tensors))


def _ask_page(path: Path, offset: int) -> PlanPage:
    with contextlib.closing(_converse(path, Command("plan", offset=offset), _ANSWER_SECONDS)) as replies:
        reply = next(replies)
    if isinstance(reply, Denied):
        raise AnswerError(409, ErrorDetail(code="closed", message=reply.message))
    if not isinstance(reply, PlanPage):
        raise UnreachableError(f"{path} answers with a {type(reply).__name__}")
    return reply


def roll_back(path: Path, reason: str, timeout_seconds: float) -> LocalRollback:
    """Ask the run behind a node's socket for uncompressed training and wait until its ranks have switched.

    Raises:
        UnreachableError: Nobody answers there.
        AnswerError: The node denies: its run cannot be steered.
    """
    began = time.monotonic()
    with contextlib.closing(_converse(path, Command("rollback", reason), timeout_seconds)) as replies:
        asked = next(replies)
        if isinstance(asked, Denied):
            raise AnswerError(409, ErrorDetail(code="closed", message=asked.message))
        if not isinstance(asked, Asked):
            raise UnreachableError(f"{path} answers with a {type(asked).__name__}")
        switched = None
        with contextlib.suppress(_LateError):
            outcome = next(replies)
            if isinstance(outcome, Outcome) and isinstance(outcome.result, Switched):
                switched = outcome.result
    return LocalRollback(asked.codec, switched, time.monotonic() - began)


def _converse(path: Path, command: Command, timeout_seconds: float) -> Generator[Reply]:
    """Send a command and yield the answers until the node hangs up, which is an error."""
    deadline = time.monotonic() + timeout_seconds
    inlet = Inlet()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(path))
            connection.sendall(pack(command))
            while True:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                data = connection.recv(65536)
                yield from inlet.replies(data)
                if not data:
                    raise UnreachableError(f"the node at {path} hung up")
    except TimeoutError as error:
        raise _LateError(f"the node at {path} did not answer for {timeout_seconds:g} s") from error
    except (OSError, msgspec.DecodeError) as error:
        raise UnreachableError(f"nobody answers at {path}: {error}") from error
