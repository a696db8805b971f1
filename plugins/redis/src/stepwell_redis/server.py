"""The way to the server: a pool of connections, and at the start whether it will do."""

from __future__ import annotations

import logging
import ssl

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from stepwell import ConfigError
from stepwell_redis.config import RedisConfig

START_S = 2.0
"""Most that a connection, and a reply, may take at the start."""


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
    named = {"ssl_ca_certs": config.tls_ca, "ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}
    options.update((option, str(path)) for option, path in named.items() if path is not None)
    return redis.BlockingConnectionPool.from_url(config.url, **options)


def check(config: RedisConfig, log: logging.Logger) -> None:
    """Say in one sentence why this server cannot be used; warn of what will cost pages."""
    pool = pool_of(config, min(config.timeout_s, START_S))
    client = redis.Redis(connection_pool=pool)
    try:
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
            f"storage.url: the server at {config.place} says: {error}; name a database that it has, and a server that"
            " speaks Redis"
        ) from None
    except (RedisError, OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"storage.url: no Redis answers at {config.place} ({error}); start it, or name another address"
        ) from None
    finally:
        pool.disconnect()  # type: ignore[no-untyped-call]
    if facts.get("maxmemory_policy") == "noeviction" and facts.get("maxmemory"):
        log.warning(
            "the server at %s keeps all it has when it is full, and pages then fail to be written; set its"
            " maxmemory-policy to allkeys-lru",
            config.place,
        )


def _facts(client: redis.Redis) -> dict[str, object]:
    """What the server says of itself, where we may ask."""
    try:
        return {**client.info("cluster"), **client.info("memory")}  # type: ignore[dict-item]
    except NoPermissionError:
        return {}
