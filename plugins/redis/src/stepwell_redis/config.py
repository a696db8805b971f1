"""The `[storage]` table when `use = "redis"`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from stepwell.coerce import Secret
from stepwell.settings import above_zero, at_least

SCHEMES = ("redis", "rediss", "unix")
MOST_CONNECTIONS = 1024
"""The pool makes a place for each at once."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Which server, how it is spoken to, and how long it keeps pages."""

    url: str
    """`redis://host:port/db`, with TLS `rediss://host:port/db`, or `unix:///path/of/socket?db=0`."""
    username: str | None = None
    """User of the server's access list; unset: the default user."""
    password: Secret | None = None
    """Password, by reference: `{ env = "NAME" }`."""
    prefix: str = "stepwell/"
    """Stands before the name of each page; what has another name is left alone."""
    ttl_s: float = 0.0
    """Seconds after which the server drops a page; 0: only when it is full."""
    refresh_on_read: bool = False
    """Start these seconds anew with each read. Needs Redis 6.2."""
    connections: int = 8
    """Most connections at once; one batch uses one."""
    timeout_s: float = 2.0
    """A server that sends or takes nothing for so long counts as gone."""
    tls_ca: Path | None = None
    """Certificates that the server's is checked against; unset: the system's."""
    tls_cert: Path | None = None
    """Certificate that this client shows."""
    tls_key: Path | None = None
    """Key of that certificate."""

    def __post_init__(self) -> None:
        if not _is_address(self.url):  # why is not said: it would show parts of a password with a slash in it
            raise ValueError("url: is no address; write redis://host:port/db")
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES:
            raise ValueError("url: must start with redis://, rediss:// or unix://")
        if parts.password is not None and not isinstance(self.url, Secret):
            raise ValueError('url: holds a password; put it into password = { env = "NAME" }')
        if set(parse_qs(parts.query)) - {"db"}:
            raise ValueError("url: takes no option but db; the others are settings of their own")
        if parts.scheme == "unix" and not parts.path:
            raise ValueError("url: names no socket; write unix:///path/of/socket")
        if not _database(parts).isdecimal():
            raise ValueError(f"url: the database {_database(parts)!r} is no number")
        if not self.prefix:
            raise ValueError("prefix: is empty, so what others keep there could not be told from pages")
        at_least("ttl_s", self.ttl_s, 0)
        if self.refresh_on_read and not self.ttl_s:
            raise ValueError("refresh_on_read: there is nothing to refresh; set ttl_s")
        if (self.tls_ca or self.tls_cert) and parts.scheme != "rediss":
            raise ValueError(f"{'tls_ca' if self.tls_ca else 'tls_cert'}: is for rediss://")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert: goes together with tls_key")
        if not 1 <= self.connections <= MOST_CONNECTIONS:
            raise ValueError(f"connections: must be 1 to {MOST_CONNECTIONS}")
        above_zero("timeout_s", self.timeout_s)

    @property
    def place(self) -> str:
        """Where the server is, with nothing secret in it."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme == "unix" else parts.netloc.rpartition("@")[2] or "localhost"


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).port != -1
    except ValueError:
        return False


def _database(parts: SplitResult) -> str:
    """The number of the database, as it stands there."""
    (named,) = parse_qs(parts.query).get("db", [""])[-1:]
    return named or ("" if parts.scheme == "unix" else parts.path.strip("/")) or "0"
