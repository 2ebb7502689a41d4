"""Settings of one server, checked once at the edge."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from gradwire_server.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8420


def default_data() -> Path:
    """Return the data folder of this user: $GRADWIRE_DATA, or `gradwire` in the XDG data home."""
    stated = os.environ.get("GRADWIRE_DATA")
    if stated:
        return Path(stated)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "gradwire"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`, a name or an address without brackets."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address, without brackets, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is told at its start; nothing is read from the environment later."""

    data: Path
    # SQLAlchemy's URL; by default an SQLite file in the data folder.
    database_url: str = ""
    host: str = DEFAULT_HOST
    # 0 lets the operating system choose.
    port: int = DEFAULT_PORT
    # Serve without TLS beyond this machine.
    is_plain_http: bool = False
    # A proxy in front ends TLS and states scheme and client in X-Forwarded-* headers.
    is_behind_proxy: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # Host names, beyond addresses and this machine's own name, under which browsers may reach the server.
    allowed_hosts: tuple[str, ...] = ()

    @property
    def has_tls(self) -> bool:
        """Whether this process itself speaks TLS."""
        return self.tls_cert is not None

    @property
    def effective_database_url(self) -> str:
        """The stated database, or the SQLite file of the data folder."""
        return self.database_url or f"sqlite:///{self.data / 'gradwire.db'}"

    @property
    def base_url(self) -> str:
        """The address to open in a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        bracketed = f"[{host}]" if ":" in host else host
        return f"{'https' if self.has_tls else 'http'}://{bracketed}:{self.port}"

    def check(self) -> None:
        """Refuse what cannot be served safely.

        Raises:
            ConfigError: Half a TLS pair, a missing file, a port out of range, or an open door without a decision.
        """
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port}; wanted: 0 to 65535")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"{path} is not a file; wanted: a PEM file")
        is_decided = self.has_tls or self.is_behind_proxy or self.is_plain_http
        if not is_loopback(self.host) and not is_decided:
            raise ConfigError(
                f"{self.host} is reachable from other machines, and nothing protects logins and tokens on the way; "
                "give --tls-cert and --tls-key, or --behind-proxy where a proxy ends TLS, "
                "or --plain-http to accept that everyone on the network can read them"
            )
