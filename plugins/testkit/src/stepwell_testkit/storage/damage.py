"""Damage: stored bytes that were cut or changed behind the store's back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from stepwell import DONE, Capability, PageKey
from stepwell_testkit.bench import Bench
from stepwell_testkit.storage.base import StorageBase

How = Literal["short", "flipped"]
Spoil = Callable[[PageKey, How], object]


class Damage(StorageBase):
    """What a bad page costs: itself, and no other."""

    @pytest.mark.parametrize("how", ["short", "flipped"])
    def test_b074_a_damaged_page_fails_alone(self, bench: Bench, how: How) -> None:
        """A short page is never DONE. One with other bytes may be: core's checksum catches it."""
        damage: Spoil | None = self.given("damage")
        if damage is None:
            pytest.skip("the fixture `damage` is not given")
        bench.put(range(8))
        bench.gets(range(8))
        damage(bench.key(3), how)
        results, pages = bench.read(range(8))
        others = [number for number in range(8) if number != 3]
        assert all(results[number] == DONE for number in others), f"one page is {how}, and the batch answered {results}"
        assert all(pages[number] == bench.bytes_of(number) for number in others)
        if how == "short" or self.checksums:
            assert results[3] != DONE, f"a page that is {how} was read as a whole one"
        assert len(bench.storage.contains(bench.keys(range(8)))) == 8
        bench.gets(others)
        if self.claims(Capability.DELETES):
            bench.storage.delete(bench.keys([3]))
            bench.put([3])
            bench.gets(range(8))
