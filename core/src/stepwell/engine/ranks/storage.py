"""The storages of ranks as one: each rank has its own, over its own arena, and all are asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from stepwell.abc.storage import Storage
from stepwell.engine.page_io import PageIO
from stepwell.engine.ranks.calls import Calls, Verb
from stepwell.engine.ranks.pages import KEY_BYTES, RanksPageIO
from stepwell.types import ArenaView, GroupSpec, PageKey, PageResult, PageViews, StoredPage

CLOSE_S = 10.0
ANEW = b"anew"
"""Asks for the first batch of a scan, and nothing for the next."""
ELSEWHERE = "pages lie in the memory of ranks, which move them: ask `pages`"


class RanksStorage(Storage):
    """Stands for the storages of all ranks, apart from moving pages: that is what `pages` is for."""

    def __init__(self, calls: Calls, recipes: Mapping[int, bytes], wait_s: float) -> None:
        """Have every rank make its own of its recipe. Raises what the first one says that cannot, with its number."""
        self._calls, self._wait_s, self._number = calls, wait_s, calls.storage()
        try:
            calls.all(self._number, Verb.MAKE, recipes, wait_s)
        except BaseException:
            self.close()
            raise

    def pages(self, groups: Sequence[GroupSpec]) -> PageIO:
        """What moves their pages."""
        return RanksPageIO(groups, len(self._calls.links), partial(self._calls.ask, self._number, Verb.PAGES))

    def attach(self, arena: ArenaView) -> None:
        """Each to the arena of its rank."""
        self._all(Verb.ATTACH, wait_s=self._wait_s)

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        raise NotImplementedError(ELSEWHERE)

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        raise NotImplementedError(ELSEWHERE)

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        raise NotImplementedError(ELSEWHERE)

    def delete(self, keys: Sequence[PageKey]) -> None:
        self._all(Verb.DELETE, b"".join(keys))

    def scan(self) -> Iterator[list[StoredPage]]:
        """Of one rank after another: ranks with one store in common list again what nobody deleted meanwhile."""
        for link in self._calls.links:
            ask = ANEW
            while body := self._calls.all(self._number, Verb.SCAN, {link.rank: ask})[link.rank]:
                ask = b""
                yield msgspec.msgpack.decode(body, type=list[StoredPage])

    def values(self) -> Mapping[str, float]:
        """What the ranks' storages count, as of some tenths of a second ago."""
        return self._calls.values(self._number)

    def close(self) -> None:
        if not self._calls.over:
            self._calls.ask(self._number, Verb.CLOSE, self._every(b""), CLOSE_S)

    def _all(self, verb: Verb, body: bytes = b"", wait_s: float | None = None) -> None:
        self._calls.all(self._number, verb, self._every(body), wait_s)

    def _every(self, body: bytes) -> dict[int, bytes]:
        return {link.rank: body for link in self._calls.links}


def keys_of(body: bytes) -> list[PageKey]:
    """Keys that travelled one after another."""
    return [body[at : at + KEY_BYTES] for at in range(0, len(body), KEY_BYTES)]
