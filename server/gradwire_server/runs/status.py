"""Whether a run lives, by server receipt time."""

from gradwire_protocol import limits

from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import StatusView


def status(source: RunSource, now: float, *, server_started_at: float) -> StatusView:
    """Return a run's status.

    What the training said last is final. Otherwise silence counts from the newest receipt, or from the server's own
    start if that came later: agents that could not deliver while the server was down are not dead.

    Args:
        source: The run.
        now: Unix seconds.
        server_started_at: When this server began to listen, Unix seconds.
    """
    run, attempt = source.run, source.attempt
    seen = run["last_seen_at"]
    if run["final_status"] is not None:
        ended = attempt["ended_at"]
        return StatusView(
            name=run["final_status"], since=seen if ended is None else ended, detail=run["status_detail"]
        )
    silence = now - max(seen, server_started_at)
    if silence > limits.LOST_AFTER_SECONDS:
        return StatusView(name="lost", since=seen)
    if silence > limits.SILENT_AFTER_SECONDS:
        return StatusView(name="silent", since=seen)
    return StatusView(name="running", since=attempt["started_at"])
