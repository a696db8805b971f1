"""The kit of storages on the connectors that run without a server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from stepwell import Capability, Storage
from stepwell_aibrix import make
from stepwell_aibrix.config import CAN, AibrixConfig
from stepwell_testkit import KitContext, StorageKit


class TestRocksDB(StorageKit):
    connector: ClassVar[Literal["rocksdb", "shfs"]] = "rocksdb"
    provides = CAN["rocksdb"] | {Capability.DELETES}
    forks = False  # the database's background threads do not live on in a child

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        config = AibrixConfig(self.connector, tmp_path / "pages")
        return lambda: make(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()


class TestSHFS(TestRocksDB):
    connector: ClassVar[Any] = "shfs"
    provides = CAN["shfs"] | {Capability.DELETES}
    forks = True
