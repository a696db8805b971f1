"""The kit of storages on a plain folder, through system calls."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell import Capability, Storage
from stepwell_testkit import KitContext, StorageKit
from stepwell_threefs import PROVIDES, ThreefsConfig
from stepwell_threefs.store import ThreefsStorage

LIMIT_MIB = 24


def usrbio_on(mount: Path, context: KitContext) -> Callable[[], Storage]:
    config = ThreefsConfig(mount / "pages", gib=LIMIT_MIB / 1024, usrbio=True, entries=16)
    return lambda: ThreefsStorage(config, context)


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


class TestUsrbio(StorageKit):
    """The same through USRBIO, over a double of its extension, straight into memory with a name."""

    provides = PROVIDES
    limit_bytes = LIMIT_MIB << 20
    checksums = True
    forks = False

    @pytest.fixture
    def reopen(self, best_mount: Path, context: KitContext) -> Callable[[], Storage]:
        return usrbio_on(best_mount, context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Iterator[Storage]:
        storage = reopen()
        yield storage
        storage.close()


class TestCopied(TestUsrbio):
    """The same through memory of its own, for a host tier without a name."""

    provides = PROVIDES - {Capability.NAMED_MEMORY, Capability.ZERO_COPY}

    @pytest.fixture
    def reopen(self, double_mount: Path, context: KitContext) -> Callable[[], Storage]:
        return usrbio_on(double_mount, context)
