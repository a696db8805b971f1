"""A server of S3 with a bucket, for a whole module."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from stepwell.coerce import Secret
from stepwell_nixl.bucket import client
from stepwell_nixl.config import ObjConfig, UcxConfig
from stepwell_testkit.server import Server

# One request to an object at a time: moto answers 500 to a PUT of an object that another request replaces meanwhile.
SERVE = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def alone(environ, start):
    if environ["PATH_INFO"] == "/":
        return app(environ, start)
    with lock:
        return [b"".join(app(environ, start))]
run_simple("127.0.0.1", int(sys.argv[1]), alone, threaded=True)
"""


class S3(Server):
    """moto's server, which keeps everything in memory; its bucket is there whenever it is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            lambda ports: [sys.executable, "-c", SERVE, str(ports[0])],
            folder,
            ready=_serves,
        )

    @property
    def config(self) -> ObjConfig:
        return ObjConfig(
            bucket="pages",
            endpoint=f"http://127.0.0.1:{self.port}",
            access_key=Secret("key"),
            secret_key=Secret("secret"),
            threads=2,
            timeout_s=2.0,
        )

    def start(self) -> Self:
        super().start()
        client(self.config).create_bucket(Bucket=self.config.bucket)
        return self


def _serves(ports: Sequence[int]) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/moto-api/", timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as server:
        yield server


class Peer(Server):
    """A peer with little memory."""

    def __init__(self, folder: Path, gib: float, *more: str) -> None:
        command = [sys.executable, "-m", "stepwell", "nixl", "peer", "--gib", str(gib), *more]
        super().__init__(lambda ports: [*command, "--listen", f"127.0.0.1:{ports[0]}"], folder)

    @property
    def config(self) -> UcxConfig:
        return UcxConfig(peer=f"127.0.0.1:{self.port}")


PEER_GIB = 24 / 1024


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with Peer(tmp_path_factory.mktemp("peer"), PEER_GIB) as server:
        yield server
