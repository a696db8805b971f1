"""Pages of the host tier to and from storage, where each part of a page is an object of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stepwell.abc.storage import Storage
from stepwell.cache.arena import Slotted
from stepwell.cache.shards import tags_of
from stepwell.engine import seal
from stepwell.types import DIGEST_BYTES, DONE, MISSING, Done, GroupSpec, Ids, Missing, PageKey, PageResult


class Unfit(Exception):
    """What storage answered is no answer to what it was asked."""


class PageIO(ABC):
    """What moves pages, one result a page whatever it consists of; raises what storage raises. Thread-safe."""

    @abstractmethod
    def contains(self, keys: Sequence[PageKey]) -> list[PageResult]:
        """Of each page, of whatever group, whether storage holds all of it: done or missing."""

    @abstractmethod
    def read(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        """Read pages into host slots. Done: all of the page is there, and is what was asked for."""

    @abstractmethod
    def write(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        """Write host slots, with trailers. Done: all of the page was written."""


class LocalPageIO(PageIO):
    """By a storage that reaches the arena of this process."""

    def __init__(self, storage: Storage, arena: Slotted, groups: Sequence[GroupSpec], rank: int | None = None) -> None:
        """`rank`: the arena is that rank's own, and has its parts only."""
        self._storage, self._arena = storage, arena
        self._tags = [group.tags if rank is None else tags_of(group, rank) for group in groups]
        self._whole = [(group.tag,) for group in groups]
        self._cut = {group.tag: tags for group, tags in zip(groups, self._tags, strict=True) if tags != (group.tag,)}

    def contains(self, keys: Sequence[PageKey]) -> list[PageResult]:
        if not self._cut:
            return [DONE if held else MISSING for held in self._storage.contains(keys)]
        objects: list[PageKey] = []
        parts = []
        for key in keys:
            tags = self._cut.get(key[DIGEST_BYTES:])
            objects += parts_of([key], tags) if tags else [key]
            parts.append(len(tags) if tags else 1)
        held = list(self._storage.contains(objects))
        _fit(len(held), len(objects))
        rest = iter(held)
        return [DONE if all([next(rest) for _ in range(count)]) else MISSING for count in parts]

    def read(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        objects, views = self._objects(group, keys), self._arena.views(group, ids)
        results = list(self._storage.read(objects, views))
        _fit(len(results), len(objects))
        return self._pages(group, seal.check_all(views.buffers(), self._payload(group), objects, results))

    def write(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        objects, views = self._objects(group, keys), self._arena.views(group, ids)
        seal.seal_all(views.buffers(), self._payload(group), objects)
        results = list(self._storage.write(objects, views))
        _fit(len(results), len(objects))
        return self._pages(group, results)

    def _payload(self, group: int) -> int:
        return self._arena.regions[group].payload

    def _objects(self, group: int, keys: Sequence[PageKey]) -> Sequence[PageKey]:
        tags = self._tags[group]
        return keys if tags == self._whole[group] else parts_of(keys, tags)

    def _pages(self, group: int, results: list[PageResult]) -> list[PageResult]:
        parts = len(self._tags[group])
        if parts == 1:
            return results
        return [together(results[at : at + parts]) for at in range(0, len(results), parts)]


def parts_of(keys: Sequence[PageKey], tags: Sequence[bytes]) -> list[PageKey]:
    """The keys of the objects that pages consist of: all of the first page's, then the next one's."""
    return [key[:DIGEST_BYTES] + tag for key in keys for tag in tags]


def together(parts: Sequence[PageResult]) -> PageResult:
    """A page's result: it failed if a part did, and is missing if a part is; else it is as its first part is."""
    if bad := [part for part in parts if not isinstance(part, Done)]:
        return next((part for part in bad if not isinstance(part, Missing)), bad[0])
    return parts[0]


def _fit(got: int, asked: int) -> None:
    if got != asked:
        raise Unfit(f"{got} results came for {asked} pages")
