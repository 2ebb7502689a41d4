"""Secrets: made here, shown once, stored as SHA-256 hashes only."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select, update

from gradwire_server.access.audit import write_audit
from gradwire_server.database.tables import tokens, users

Kind = Literal["login", "session", "ingest", "operator", "read"]

LOGIN_SECONDS = 15 * 60.0
SESSION_SECONDS = 30 * 24 * 3600.0

# How long a known token is believed without asking the database.
CACHE_SECONDS = 60.0
MAX_CACHED_TOKENS = 10_000


@dataclass(frozen=True)
class Token:
    """A valid secret's row: what it is for and whose name it carries."""

    hash: str
    kind: Kind
    name: str
    user: int | None
    expires_at: float | None


def hash_secret(secret: str) -> str:
    """Return the form in which a secret is stored.

    The secret has 256 random bits, so that a plain hash cannot be reversed by guessing; and since the lookup is by
    hash, its time says nothing about a secret that was nearly right.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create_token(
    connection: Connection,
    kind: Kind,
    name: str,
    *,
    now: float,
    user: int | None = None,
    seconds: float | None = None,
) -> str:
    """Store a new token's hash and return the secret, which nobody can read again.

    Args:
        connection: Of the writer.
        kind: What the token is for.
        name: Whose or what's it is; shown as the author of what is done with it.
        now: Unix seconds.
        user: The user behind a login link or session.
        seconds: Lifetime; None is for ever.
    """
    secret = secrets.token_urlsafe(32)
    row = {
        "hash": hash_secret(secret),
        "kind": kind,
        "name": name,
        "user": user,
        "created_at": now,
        "expires_at": None if seconds is None else now + seconds,
    }
    connection.execute(insert(tokens).values(row))
    if kind in ("ingest", "operator", "read"):
        write_audit(connection, at=now, actor="console", action="token_created", after={"kind": kind, "name": name})
    return secret


def create_login(connection: Connection, name: str, *, now: float) -> str:
    """Return the secret of a login link for the operator called `name`, who is created when unknown."""
    user = _operator(connection, name, now)
    return create_token(connection, "login", name, now=now, user=user, seconds=LOGIN_SECONDS)


def use_login(connection: Connection, secret: str, *, now: float) -> str | None:
    """Trade a login link's secret for a session's, once; None when it is unknown, used or too old."""
    used = connection.execute(
        update(tokens)
        .where(tokens.c.hash == hash_secret(secret), tokens.c.kind == "login")
        .where(tokens.c.used_at.is_(None), tokens.c.expires_at > now)
        .values(used_at=now)
    )
    if used.rowcount != 1:
        return None
    link = connection.execute(select(tokens).where(tokens.c.hash == hash_secret(secret))).one()
    write_audit(connection, at=now, actor=link.name, action="login")
    return create_token(connection, "session", link.name, now=now, user=link.user, seconds=SESSION_SECONDS)


def end_session(connection: Connection, secret: str, *, now: float) -> None:
    """Make a session's secret worthless."""
    connection.execute(update(tokens).where(tokens.c.hash == hash_secret(secret)).values(expires_at=now))


def find_token(connection: Connection, secret: str, *, now: float) -> Token | None:
    """Return the token of a secret, or None when it is unknown or has expired; login links are not tokens."""
    row = connection.execute(select(tokens).where(tokens.c.hash == hash_secret(secret))).one_or_none()
    if row is None or row.kind == "login" or (row.expires_at is not None and row.expires_at <= now):
        return None
    return Token(row.hash, row.kind, row.name, row.user, row.expires_at)


def has_session(connection: Connection, *, now: float) -> bool:
    """Return whether anybody is logged in."""
    query = select(tokens.c.hash).where(tokens.c.kind == "session", tokens.c.expires_at > now).limit(1)
    return connection.execute(query).first() is not None


def _operator(connection: Connection, name: str, now: float) -> int:
    user = connection.execute(select(users.c.id).where(users.c.name == name)).scalar_one_or_none()
    if user is None:
        result = connection.execute(insert(users).values(name=name, role="operator", created_at=now))
        assert result.inserted_primary_key is not None
        user = result.inserted_primary_key[0]
    return int(user)


class TokenCache:
    """Tokens seen lately, by hash; what is not here is asked of the database each time.

    Only found tokens are kept, so a new one works at once; an ended one is forgotten by `forget`, and by any other
    process's doing after `CACHE_SECONDS`.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[float, Token]] = {}

    def get(self, secret: str, *, now: float) -> Token | None:
        """Return a token that was found within `CACHE_SECONDS` and has not expired."""
        found_at, token = self._tokens.get(hash_secret(secret), (0.0, None))
        is_expired = token is None or (token.expires_at is not None and token.expires_at <= now)
        return None if is_expired or not 0 <= now - found_at < CACHE_SECONDS else token

    def put(self, token: Token, *, now: float) -> None:
        """Keep a token that the database has just confirmed."""
        if len(self._tokens) >= MAX_CACHED_TOKENS:
            self._tokens.clear()
        self._tokens[token.hash] = (now, token)

    def forget(self, secret: str) -> None:
        """Ask the database again next time."""
        self._tokens.pop(hash_secret(secret), None)
