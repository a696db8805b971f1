"""The kit of storages against a real server that is full after 24 MiB."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from stepwell import PageKey, Storage
from stepwell_redis import RedisConfig, stepwell_storages
from stepwell_redis.store import RedisStorage
from stepwell_testkit import KitContext, StorageKit
from stepwell_testkit.server import Server

LIMIT_MIB = 24


class TestRedis(StorageKit):
    provides = stepwell_storages()[0].provides
    limit_bytes = LIMIT_MIB << 20

    @pytest.fixture
    def server(self, make_server: Callable[..., Server], tmp_path: Path) -> Iterator[Server]:
        # The server takes 1 to 2 MiB for itself.
        with make_server(tmp_path, "--maxmemory", f"{LIMIT_MIB + 2}mb", "--maxmemory-policy", "allkeys-lru") as server:
            yield server

    @pytest.fixture
    def reopen(self, server: Server, context: KitContext) -> Callable[[], Storage]:
        config = RedisConfig(f"redis://127.0.0.1:{server.port}/0")
        return lambda: RedisStorage(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()

    @pytest.fixture
    def damage(self, server: Server, name_of: Callable[[PageKey], bytes]) -> Callable[[PageKey, str], object]:
        def damage(key: PageKey, how: str) -> None:
            client = redis.Redis(port=server.port)
            value = client.get(name_of(key))
            assert isinstance(value, bytes)
            client.set(name_of(key), value[:-1] if how == "short" else bytes([value[0] ^ 1]) + value[1:])

        return damage

    @pytest.fixture
    def fill_up(self, server: Server) -> Callable[[], object]:
        @contextmanager
        def fill_up() -> Iterator[None]:
            client = redis.Redis(port=server.port)
            before = client.config_get("maxmemory*")
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1kb")
            yield
            for name in ("maxmemory", "maxmemory-policy"):
                client.config_set(name, before[name])  # type: ignore[index]

        return fill_up
