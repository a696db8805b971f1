"""One storage under test with an arena of its own, and pages whose right bytes are known from their number."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from uuid import uuid4

from stepwell import DONE, Done, Failed, Missing, PageKey, PageResult, Storage, StoredPage
from stepwell_testkit.arena import KitArena

PAINT = 0xA5
KEY_BYTES = 40


class Bench:
    """Writes and reads numbered pages through the arena, and holds every answer to the contract's shape."""

    def __init__(self, storage: Storage, page_bytes: int, slots: int, salt: str = "", *, named: bool = False) -> None:
        self.storage = storage
        self.salt = salt or new_salt()
        self.known: set[PageKey] = set()
        """Every key that was asked for: what there can be of this bench in the store."""
        self.closed = False
        self._right: dict[int, bytes] = {}
        self.arena = KitArena(page_bytes, slots, named=named)
        storage.attach(self.arena)
        self.arena.unname()

    def renewed(self) -> Bench:
        """The same storage and arena with keys of its own, as if the store were new."""
        other = copy(self)
        other.salt, other.known = new_salt(), set()
        return other

    def close(self) -> None:
        """Close the storage."""
        self.closed = True
        self.storage.close()

    def tidy(self) -> None:
        """Leave nothing in a store that outlives the test."""
        with suppress(Exception):  # one that cannot delete has failed the test of that
            self.storage.delete(sorted(self.known))

    def key(self, number: int) -> PageKey:
        """The key of page `number`."""
        key = hashlib.sha256(f"{self.salt}|{number}".encode()).digest() + b"kit-full"
        self.known.add(key)
        return key

    def keys(self, numbers: Iterable[int]) -> list[PageKey]:
        """The keys of several."""
        return [self.key(number) for number in numbers]

    def remember(self, keys: Iterable[PageKey]) -> None:
        """Take keys that a test made itself for this bench's."""
        self.known.update(keys)

    def bytes_of(self, number: int) -> bytes:
        """The right bytes of page `number`: no two pages, and no two places of one, are alike."""
        if number not in self._right:
            self._right[number] = hashlib.shake_128(f"page {number}".encode()).digest(self.arena.page_bytes)
        return self._right[number]

    def write(self, numbers: Sequence[int], slots: Sequence[int] | None = None) -> Sequence[PageResult]:
        """Fill slots with the right bytes, write them, and scribble over them afterwards."""
        slots = range(len(numbers)) if slots is None else slots
        for number, slot in zip(numbers, slots, strict=True):
            self.arena.fill(slot, self.bytes_of(number))
        results = answers(self.storage.write(self.keys(numbers), self.arena.views(slots)), len(numbers))
        for slot in slots:
            self.arena.fill(slot, bytes([PAINT]) * self.arena.page_bytes)
        return results

    def put(self, numbers: Sequence[int]) -> None:
        """Write pages that must succeed."""
        results = self.write(numbers)
        assert all(isinstance(result, Done) for result in results), f"writing pages {list(numbers)} gave {results}"

    def read(
        self, numbers: Sequence[int], slots: Sequence[int] | None = None
    ) -> tuple[Sequence[PageResult], list[bytes]]:
        """Read into painted slots: the answers, and what lies in the slots then."""
        slots = range(len(numbers)) if slots is None else slots
        for slot in slots:
            self.arena.fill(slot, bytes([PAINT]) * self.arena.page_bytes)
        results = answers(self.storage.read(self.keys(numbers), self.arena.views(slots)), len(numbers))
        return results, [self.arena.page(slot) for slot in slots]

    def found(self, numbers: Sequence[int]) -> list[bool]:
        """Which pages a read finds; the bytes of each that it finds must be right, and none may fail."""
        return self.found_at(0, numbers)

    def found_at(self, slot: int, numbers: Sequence[int]) -> list[bool]:
        """The same, read into the slots from `slot` on."""
        results, pages = self.read(numbers, range(slot, slot + len(numbers)))
        return self.right(numbers, results, pages)

    def right(self, numbers: Sequence[int], results: Sequence[PageResult], pages: Sequence[bytes]) -> list[bool]:
        """Which pages were found; the bytes of each must be right, and none may have failed."""
        for number, result, page in zip(numbers, results, pages, strict=True):
            assert not isinstance(result, Failed), f"reading page {number} failed: {result}"
            if isinstance(result, Done):
                assert page == self.bytes_of(number), f"page {number} is {_difference(page, self.bytes_of(number))}"
        return [result == DONE for result in results]

    def gets(self, numbers: Sequence[int]) -> None:
        """Read pages that must all be there."""
        found = self.found(numbers)
        lost = [number for number, there in zip(numbers, found, strict=True) if not there]
        assert not lost, f"pages {lost} were written and are not found"

    def lacks(self, numbers: Sequence[int]) -> None:
        """Read pages none of which may be there."""
        found = self.found(numbers)
        ghosts = [number for number, there in zip(numbers, found, strict=True) if there]
        assert not ghosts, f"pages {ghosts} are found and should not be"

    def listed(self) -> dict[PageKey, int]:
        """What a scan lists: the size by key, each key once."""
        sizes: dict[PageKey, int] = {}
        for batch in self.storage.scan():
            for page in batch:
                assert isinstance(page, StoredPage), f"{page!r} is no StoredPage"
                assert isinstance(page.key, bytes) and len(page.key) == KEY_BYTES, f"{page.key!r} is no page key"
                assert page.key not in sizes, f"key {page.key.hex()} is listed twice"
                sizes[page.key] = page.nbytes
        return sizes

    def own_listed(self) -> dict[PageKey, int]:
        """What a scan lists of this bench's pages."""
        return {key: size for key, size in self.listed().items() if key in self.known}

    def lists(self, numbers: Collection[int]) -> None:
        """A scan must list these pages at their size, and no other of this bench's."""
        right = {self.key(number): number for number in numbers}
        sizes = self.own_listed()
        lost = [number for key, number in right.items() if key not in sizes]
        assert not lost, f"pages {lost} are held and not listed"
        ghosts = len(set(sizes) - set(right))
        assert not ghosts, f"{ghosts} pages are listed that are not held"
        wrong = [size for size in sizes.values() if size != self.arena.page_bytes]
        assert not wrong, f"pages of {self.arena.page_bytes} bytes are listed with {wrong}"


def new_salt() -> str:
    """Makes keys that no other run has used: a store that outlives its tests must not answer from an earlier one."""
    return uuid4().hex


def answers(results: Sequence[PageResult], keys: int) -> Sequence[PageResult]:
    """Results that are one page result a key."""
    assert len(results) == keys, f"{keys} keys got {len(results)} answers"
    for result in results:
        assert isinstance(result, Done | Missing | Failed), f"{result!r} is no page result"
    return results


def _difference(page: bytes, right: bytes) -> str:
    wrong = [at for at in range(0, len(right), 512) if page[at : at + 512] != right[at : at + 512]]
    painted = page[wrong[0] : wrong[0] + 512].count(PAINT) > 500
    return f"wrong from byte {wrong[0]} on ({len(wrong)} of {-(-len(right) // 512)} sectors){', unfilled' * painted}"
