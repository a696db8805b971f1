"""Real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stepwell import PageKey
from stepwell_redis import RedisConfig
from stepwell_redis.store import RedisStorage
from stepwell_testkit import KitContext
from stepwell_testkit.server import Server, need_program

Serve = Callable[..., Server]
Open = Callable[..., RedisStorage]


@pytest.fixture(scope="session")
def redis_program() -> str:
    return need_program("redis-server")


@pytest.fixture(scope="session")
def make_server(redis_program: str) -> Serve:
    """A server with these options, not yet started."""

    def make(folder: Path, *options: str) -> Server:
        fixed = ("--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
        return Server(lambda ports: (redis_program, "--port", str(ports[0]), *fixed, *options), folder)

    return make


@pytest.fixture
def serve(make_server: Serve, tmp_path: Path) -> Iterator[Serve]:
    """Starts servers with these options; they end with the test."""
    with ExitStack() as servers:
        yield lambda *options: servers.enter_context(make_server(tmp_path, *options))


@pytest.fixture
def opened(context: KitContext) -> Iterator[Open]:
    """Opens stores at a port, or with other settings; they are closed with the test."""
    stores: list[RedisStorage] = []

    def make(port: int = 0, **settings: object) -> RedisStorage:
        config = RedisConfig(**({"url": f"redis://127.0.0.1:{port}/0", "timeout_s": 0.5} | settings))  # type: ignore[arg-type]
        stores.append(RedisStorage(config, context))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def name_of() -> Callable[[PageKey], bytes]:
    return lambda key: b"stepwell/" + key.hex().encode()
