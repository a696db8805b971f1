"""The storage kit against a real master and a segment in another process."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from stepwell import Storage
from stepwell_mooncake import stepwell_storages
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit import StorageKit
from stepwell_testkit.server import Server

Open = Callable[..., MooncakeStorage]


class TestMooncake(StorageKit):
    provides = stepwell_storages()[0].provides
    limit_bytes: ClassVar[int] = 64 << 20  # the segment that `owner` gives
    forks: ClassVar[bool] = False

    @pytest.fixture
    def storage(self, master: Server, owner: Server, opened: Open) -> Storage:
        return opened(master)

    @pytest.fixture
    def reopen(self, master: Server, opened: Open) -> Callable[[], Storage]:
        return lambda: opened(master)
