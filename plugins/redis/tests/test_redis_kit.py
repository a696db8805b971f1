"""The kit of storages against a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell import Capability, Storage
from stepwell_redis import RedisConfig, stepwell_storages
from stepwell_redis.store import RedisStorage
from stepwell_testkit import KitContext, StorageKit
from stepwell_testkit.server import Server, need_program

LIMIT_MIB = 24


def redis_server(folder: Path, *options: str) -> Server:
    program = need_program("redis-server")
    fixed = ("--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    return Server(lambda ports: (program, "--port", str(ports[0]), *fixed, *options), folder)


class TestRedis(StorageKit):
    [offer] = stepwell_storages()
    provides = offer.provides
    limit_bytes = LIMIT_MIB << 20

    @pytest.fixture(scope="class")
    def server(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        # The server itself takes about 1 MiB, and 4 KiB pages must fit as well as large ones.
        options = ("--maxmemory", f"{LIMIT_MIB + 2}mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "no")
        with redis_server(tmp_path_factory.mktemp("redis"), *options) as server:
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
