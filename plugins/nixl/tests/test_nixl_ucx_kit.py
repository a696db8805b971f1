"""The kit of storages on the memory of a peer in this machine."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepwell import Storage
from stepwell_nixl import FOLDER, make_ucx
from stepwell_testkit import KitContext, StorageKit


class TestNixlUcx(StorageKit):
    provides = FOLDER
    limit_bytes = 24 << 20
    forks = False

    @pytest.fixture
    def server(self, peer: Any) -> Any:
        return peer

    @pytest.fixture
    def reopen(self, peer: Any, context: KitContext) -> Callable[[], Storage]:
        return lambda: make_ucx(peer.config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()
