"""The kit of storages, with direct I/O and without."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell import Storage
from stepwell_file import PROVIDES, FileConfig
from stepwell_file.store import FileStorage
from stepwell_testkit import KitContext, StorageKit

LIMIT_MIB = 24


class TestFile(StorageKit):
    provides = PROVIDES
    limit_bytes = LIMIT_MIB << 20
    checksums = True
    direct = True

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        config = FileConfig(tmp_path / "pages", gib=LIMIT_MIB / 1024, direct="auto" if self.direct else False)
        return lambda: FileStorage(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()


class TestBufferedFile(TestFile):
    direct = False
