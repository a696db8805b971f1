"""The kit of storages on a folder, with each engine, with direct I/O and without."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from stepwell import Storage
from stepwell_nixl import FOLDER, make
from stepwell_nixl.config import NixlConfig
from stepwell_testkit import KitContext, StorageKit

LIMIT_MIB = 24


class TestNixl(StorageKit):
    provides = FOLDER
    limit_bytes = LIMIT_MIB << 20
    direct: ClassVar[bool] = True
    engine: ClassVar[Literal["aio", "uring"]] = "aio"

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        config = NixlConfig(
            path=tmp_path / "pages",
            gib=LIMIT_MIB / 1024,
            engine=self.engine,
            direct="auto" if self.direct else False,
        )
        return lambda: make(config, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()


class TestUring(TestNixl):
    engine = "uring"


class TestBuffered(TestNixl):
    direct = False
