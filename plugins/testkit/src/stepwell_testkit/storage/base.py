"""What all parts of the storage kit share: what an author says of the store, and how a test gets hold of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from stepwell import Capability, Storage
from stepwell_testkit.bench import Bench
from stepwell_testkit.kit import Kit

KIB = 1024
PAGE = 4 * KIB
BIG = 1024 * KIB
SLOTS = 64
WORKERS = 8
ODD = (b"\0" * 24, b"\xff" * 24, b"../" * 8, b"/" * 24, b"\n\r\t %?*\0" * 3, b"a" * 24, b"A" * 24)
"""Ends of keys that a store might take for something else."""
OUTLIVING = frozenset({Capability.PERSISTENT, Capability.SHARED})


class StorageBase(Kit):
    """Settings, fixtures and helpers of the storage kit."""

    required: ClassVar[tuple[str, ...]] = ("storage",)
    limit_bytes: ClassVar[int] = 0
    """Bytes of pages after which the store under test has to drop some; more than 3 MiB, with PERSISTENT or SHARED
    more than 10 MiB, and not much more."""
    forks: ClassVar[bool] = True
    """False where the client library does not survive a fork: tests that need another process are then skipped."""
    closes: ClassVar[bool] = False
    """True where the fixture `storage` leaves it to the kit to close what it gives."""
    checksums: ClassVar[bool] = False
    """True where the store itself must notice that stored bytes have changed; core's own checksum does so anyway."""
    patience_s: ClassVar[float] = 10.0
    """How long a call may take whose server is dead or frozen, and how long the store may need to recover."""
    _request: pytest.FixtureRequest

    @classmethod
    def kit_fixtures(cls) -> tuple[str, ...]:
        return (*cls.required, "reopen") if OUTLIVING & cls.provides else cls.required

    @classmethod
    def kit_refusals(cls) -> list[str]:
        refusals = super().kit_refusals()
        if Capability.EVICTS in cls.provides and cls.limit_bytes <= 0:
            refusals.append(f"{cls.__name__}: claims EVICTS, so say in limit_bytes when the store is full")
        return refusals

    @pytest.fixture(autouse=True)
    def kit_request(self, request: pytest.FixtureRequest) -> None:
        """Lets helpers ask for fixtures that not every author gives."""
        self._request = request

    @pytest.fixture
    def bench(self, storage: Storage) -> Bench:
        """The storage with an arena of 4 KiB pages."""
        return self.bench_of(storage, PAGE, SLOTS)

    def bench_of(self, storage: Storage, page_bytes: int, slots: int, salt: str = "", *, ours: bool = False) -> Bench:
        """A bench that leaves nothing behind in the store; where the instance is ours it is closed as well."""
        bench = Bench(storage, page_bytes, slots, salt, named=self.claims(Capability.NAMED_MEMORY))

        def end() -> None:
            if not bench.closed and OUTLIVING & self.provides:
                bench.tidy()
            if not bench.closed and (ours or self.closes):
                bench.close()

        # After the test, and before any fixture that it uses ends.
        self._request.node.addfinalizer(end)
        return bench

    def reopened(self, page_bytes: int, slots: int, salt: str = "") -> Bench:
        """One more instance on the same pages."""
        return self.bench_of(self.maker()(), page_bytes, slots, salt, ours=True)

    def maker(self) -> Callable[[], Storage]:
        """Makes an instance, also in a child process: what it needs of other fixtures stands in this one by then."""
        reopen: Callable[[], Storage] | None = self.given("reopen")
        if reopen is not None:
            return reopen
        self.given("server")
        make: Callable[[], Storage] = lambda: self._request.getfixturevalue("storage")  # noqa: E731
        return make

    def given(self, fixture: str) -> Any:
        """What a fixture gives that the author may have written, as pytest does; None without it."""
        try:
            return self._request.getfixturevalue(fixture)
        except pytest.FixtureLookupError as error:
            if error.argname != fixture:
                raise
            return None

    def claims(self, capability: Capability) -> bool:
        """Whether the author says that the store can do this."""
        return capability in self.provides

    def need_forks(self) -> None:
        """Skip where a client library does not survive a fork."""
        if not self.forks:
            pytest.skip("its client does not survive a fork")
