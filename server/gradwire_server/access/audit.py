"""One row for every change that somebody made."""

from typing import Any

from sqlalchemy import Connection, insert

from gradwire_server.database.tables import audit


def write_audit(
    connection: Connection,
    *,
    at: float,
    actor: str,
    action: str,
    run: str | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
) -> None:
    """Note who did what, in the transaction of the change itself.

    Args:
        connection: Of the writer.
        at: Unix seconds.
        actor: Name of the user, token or rule; "console" for the command line on the server's machine.
        action: For example "set", "rollback", "reason", "baseline", "login", "token_created".
        run: The run that changed, if one did.
        before: State before the change, plain JSON.
        after: State after it.
        reason: What the actor gave as the reason.
    """
    change = {"run": run, "before": before, "after": after, "reason": reason}
    connection.execute(insert(audit).values(at=at, actor=actor, action=action, **change))
