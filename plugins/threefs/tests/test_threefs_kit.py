"""The kit of storages on a plain folder, through system calls."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell import Storage
from stepwell_threefs import PROVIDES, ThreefsConfig
from stepwell_threefs.store import ThreefsStorage
from stepwell_testkit import KitContext, StorageKit

LIMIT_MIB = 24


class TestPosix(StorageKit):
    provides = PROVIDES
    limit_bytes = LIMIT_MIB << 20
    checksums = True

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        config = ThreefsConfig(tmp_path / "pages", gib=LIMIT_MIB / 1024, usrbio=False)
        return lambda: ThreefsStorage(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()
