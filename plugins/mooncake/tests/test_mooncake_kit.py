"""The storage kit against a real master and a segment in another process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

import pytest

from stepwell import Capability, PageKey, Storage
from stepwell_mooncake import stepwell_storages
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit import StorageKit
from stepwell_testkit.server import Server
from stepwell_testkit.storage.outage import Outage

Open = Callable[..., MooncakeStorage]


class Stranger(Protocol):
    """Somebody else at the store."""

    def get(self, name: str) -> bytes: ...
    def put(self, name: str, data: bytes | bytearray, *, pinned: bool = False) -> bool: ...
    def remove(self, names: list[str]) -> None: ...


SEGMENT_MIB = 32


class TestMooncake(StorageKit):
    provides = stepwell_storages()[0].provides | {Capability.CHECKS}
    limit_bytes: ClassVar[int] = SEGMENT_MIB << 20
    forks: ClassVar[bool] = False
    checksums: ClassVar[bool] = True

    @pytest.fixture
    def storage(
        self, lasting: Callable[[Server], Storage], opened: Open, owner: Server, request: pytest.FixtureRequest
    ) -> Storage:
        if "evicts" in request.node.name:  # it reads each page, and those that were read stay for a while
            return opened(request.getfixturevalue("forgetful"), space_retries=75)
        return lasting(request.getfixturevalue("master"))

    @pytest.fixture
    def reopen(self, master: Server, opened: Open) -> Callable[[], Storage]:
        return lambda: opened(master)

    @pytest.fixture
    def damage(
        self, stranger: Callable[[Server], Stranger], master: Server, flipped: Callable[[bytes], None]
    ) -> Callable[[PageKey, str], object]:
        other = stranger(master)

        def damage(key: PageKey, how: str) -> None:
            name = "stepwell/" + key.hex()
            page = other.get(name)
            if how == "flipped":
                flipped(page)
            else:
                other.remove([name])
                assert other.put(name, page[:-1])

        return damage

    @pytest.fixture
    def fill_up(self, stranger: Callable[[Server], Stranger], master: Server) -> Callable[[], object]:
        """Others' objects, which the store may not drop, in all of the segment."""
        other = stranger(master)

        @contextmanager
        def fill_up() -> Iterator[None]:
            names = ["pinned-0"]
            for size in (1 << 20, 1 << 16, 1 << 12):
                while other.put(names[-1], bytes(size), pinned=True):
                    names.append(f"pinned-{len(names)}")
            yield
            other.remove(names)

        return fill_up


class TestMasterOutage(Outage):
    """The master is killed, frozen and started again."""

    provides = stepwell_storages()[0].provides
    limit_bytes: ClassVar[int] = SEGMENT_MIB << 20

    @pytest.fixture
    def server(self, own_master: Server, own_owner: Server) -> Server:
        return own_master

    @pytest.fixture
    def storage(self, own_master: Server, own_owner: Server, opened: Open, settled: Open) -> Storage:
        return settled(own_master, opened(own_master))

    @pytest.fixture
    def reopen(self, own_master: Server, opened: Open) -> Callable[[], Storage]:
        return lambda: opened(own_master)


class TestOwnerOutage(TestMasterOutage):
    """The process with the only segment is killed, frozen and started again."""

    @pytest.fixture
    def server(self, own_master: Server, own_owner: Server) -> Server:
        return own_owner
