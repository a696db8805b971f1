"""The way to the server: a pool of connections, and at the start whether it will do."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from stepwell import ConfigError
from stepwell_redis.config import RedisConfig

START_S = 2.0
"""Most that a connection, and a reply, may take at the start."""
CHECK_S = 3.0
"""Most that all of it may take, whatever comes in the meantime."""
SHOWN = 120
"""Of what an error says; it may quote what a server sent."""

CONFUSED = (AttributeError, LookupError, TypeError, ValueError)
"""What the client raises, besides its own errors, over replies that it does not expect."""


def pool_of(config: RedisConfig, timeout_s: float) -> redis.BlockingConnectionPool:
    """Connections that give up after `timeout_s`. As it comes, the client retries a frozen server for 14 to 26 s."""
    options: dict[str, object] = {
        "max_connections": config.connections,
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, START_S),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if not config.url.startswith("unix"):
        options["socket_keepalive"] = True
    if config.username is not None:
        options["username"] = config.username
    if config.password is not None:
        options["password"] = str(config.password)
    options.update((_FILES[name], str(path)) for name, path in _files(config).items())
    return redis.BlockingConnectionPool.from_url(config.url, **options)


def check(config: RedisConfig, log: logging.Logger) -> None:
    """Say in one sentence why this server cannot be used; warn of what will cost pages."""
    for name, path in _files(config).items():
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"storage.{name}: {path} cannot be read ({error.strerror}); name another file") from None
    pool = pool_of(config, min(config.timeout_s, START_S))
    client = redis.Redis(connection_pool=pool)
    late = threading.Event()
    try:
        with _ended(pool, late):
            facts = _facts(client)
            if facts.get("cluster_enabled") == 1:
                raise ConfigError(f"storage.url: the server at {config.place} is in cluster mode; name one that is not")
            client.exists(config.prefix)
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        raise ConfigError(
            f"storage.password: the server at {config.place} does not let us in ({error}); set storage.username and"
            " storage.password to what it knows"
        ) from None
    except ResponseError as error:
        raise ConfigError(
            f"storage.url: the server at {config.place} says: {str(error)[:SHOWN]}; name a database that it has, and a"
            " server that speaks Redis"
        ) from None
    except (RedisError, OSError, ssl.SSLError) as error:
        why = f"what it sends has no end within {CHECK_S:g} s" if late.is_set() else str(error)[:SHOWN]
        raise ConfigError(
            f"storage.url: no Redis answers at {config.place} ({why}); start it, or name another address"
        ) from None
    except CONFUSED:
        raise ConfigError(
            f"storage.url: what answers at {config.place} does not speak Redis; name another address"
        ) from None
    finally:
        pool.disconnect()  # type: ignore[no-untyped-call]
    if facts.get("maxmemory_policy") == "noeviction" and facts.get("maxmemory"):
        log.warning(
            "the server at %s keeps all it has when it is full, and pages then fail to be written; set its"
            " maxmemory-policy to allkeys-lru",
            config.place,
        )


@contextmanager
def _ended(pool: redis.BlockingConnectionPool, late: threading.Event) -> Iterator[None]:
    """A while in which the server may be spoken to; then its connections end. A timeout alone is for silence only."""

    def end() -> None:
        late.set()
        for connection in list(pool._connections):
            with suppress(OSError):
                if connection._sock is not None:
                    connection._sock.shutdown(socket.SHUT_RDWR)

    watch = threading.Timer(CHECK_S, end)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


_FILES = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
"""Settings that name files, and what the client calls them."""


def _files(config: RedisConfig) -> dict[str, Path]:
    return {name: path for name in _FILES if (path := getattr(config, name)) is not None}


def _facts(client: redis.Redis) -> dict[str, object]:
    """What the server says of itself, where we may ask."""
    try:
        return {**client.info("cluster"), **client.info("memory")}  # type: ignore[dict-item]
    except NoPermissionError:
        return {}
