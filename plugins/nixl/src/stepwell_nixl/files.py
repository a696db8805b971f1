"""The store of `nixl` and `nixl-gds`: batches of pages between the arena and segment files, moved by NIXL.

A page becomes visible with its record in the journal, which is appended when NIXL has said that its bytes are in
place. After a read the journal is looked at again: where a segment has left meanwhile, its pages are missing, since its
file may hold others by now.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from stepwell import (
    DONE,
    MISSING,
    ArenaView,
    ConfigError,
    Context,
    Failed,
    PageKey,
    PageResult,
    PageViews,
    Storage,
    StoredPage,
)
from stepwell_nixl.catalog import Catalog, Found
from stepwell_nixl.client import Rows
from stepwell_nixl.config import FolderConfig
from stepwell_nixl.journal import KEY, NAME, Journal, Kind, records
from stepwell_nixl.lanes import FileLane, Lanes, file_lanes
from stepwell_nixl.segment import BLOCK, Segment, Tail
from stepwell_nixl.space import Space, trim
from stepwell_nixl.transfer import rows

Which = npt.NDArray[np.intp]


class FileStorage(Storage):
    """Pages in a folder."""

    def __init__(
        self,
        config: FolderConfig,
        context: Context,
        backend: str,
        params: dict[str, str],
        direct: bool | str = "auto",
        setting: str = "use",
    ) -> None:
        """`setting` is what to look at in the config where the backend does not start."""
        self._transfers = config.transfers
        self._log = context.log
        self._backend, self._params, self._setting = backend, params, setting
        journal = open_folder(config)
        self._journal = journal
        self._direct = can_direct(config, direct)
        self._catalog = Catalog(config.path, journal, config.ttl_h * 3600)
        self._catalog.follow()
        self._space = Space(config, journal, self._catalog)
        self._placing = threading.Lock()
        self._tails: dict[int, Tail] = {}
        self._lanes: Lanes[FileLane] | None = None
        self._warned: set[str] = set()

    def attach(self, arena: ArenaView) -> None:
        self._lanes = file_lanes(self._backend, self._params, arena, self._setting)

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        held: list[bool] = (self._catalog.find(keys).places >= 0).tolist()
        return held

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        size = _size(into)
        found = self._catalog.find(keys, size)
        results: list[PageResult] = [MISSING] * len(keys)
        where = np.flatnonzero(found.places >= 0)
        if not len(where):
            return results
        with self._attached().one() as lane:
            lane.tidy()
            direct = self._past_cache(into)
            far, lost = self._far(lane, found, size, direct)
            there = where[~np.isin(where, list(lost))] if lost else where
            near = rows(into.addresses[there, 0], size)
            moved = lane.mover.move("READ", near, far[there], self._cuts(direct))
        self._set_done(results, there[moved])
        for at in [*there[~moved].tolist(), *lost]:
            results[at] = self._bad(keys[at], found, at, lost.get(at))
        return self._unless_moved_on(keys, size, found, results)

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        size = _size(pages)
        results: list[PageResult] = [DONE] * len(keys)
        which = self._to_write(keys, size, results)
        if not len(which):
            return results
        placed = self._place(which, size, results)
        direct = self._past_cache(pages)
        with self._attached().one() as lane:
            lane.tidy()
            opened: list[tuple[Tail, Which, Which, Rows]] = []
            for tail, first, some in placed:
                slots = np.arange(first, first + len(some))
                try:
                    opened.append((tail, some, slots, rows(slots * size, size, lane.file(tail.segment, direct))))
                except OSError as error:
                    self._fail(results, some, f"{tail.segment.path.name}: {error.strerror or error}")
            if not opened:
                return self._repeated(keys, which, results)
            near = rows(pages.addresses[np.concatenate([some for _, some, _, _ in opened]), 0], size)
            far = np.concatenate([rows_ for _, _, _, rows_ in opened])
            moved = lane.mover.move("WRITE", near, far, self._cuts(direct))
        at = 0
        for tail, some, slots, _ in opened:
            good = moved[at : at + len(some)]
            at += len(some)
            self._fail(results, some[~good], f"{tail.segment.path.name}: NIXL did not write it whole")
            self._publish(keys, some[good], tail.segment, slots[good], results)
        return self._repeated(keys, which, results)

    def delete(self, keys: Sequence[PageKey]) -> None:
        found = self._catalog.find(keys)
        gone = []
        for segment in found.segments.values():
            which = found.of(segment)
            gone.append(records(Kind.GONE, segment.number, found.slots(which), 0, [keys[at] for at in which]))
        if gone:
            self._space.record(gone)
            self._space.sweep(list(found.segments))

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        yield from self._catalog.scan()

    def close(self) -> None:
        with self._placing:
            for tail in self._tails.values():
                trim(tail)
            self._tails.clear()
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None
        self._catalog.close()
        self._journal.close()

    # --- reading ---------------------------------------------------------------------------------------------------

    def _far(self, lane: FileLane, found: Found, size: int, direct: bool) -> tuple[Rows, dict[int, str]]:
        """The far side of every page that was found, and why some cannot be had."""
        far = np.zeros((len(found.places), 3), dtype=np.uint64)
        lost: dict[int, str] = {}
        for segment in found.segments.values():
            which = found.of(segment)
            try:
                far[which] = rows(found.slots(which) * size, size, lane.file(segment, direct))
            except OSError as error:
                lost.update((int(at), f"{segment.path.name}: {error.strerror or error}") for at in which)
        return far, lost

    def _bad(self, key: PageKey, found: Found, at: int, why: str | None) -> Failed:
        """A page that could not be read. What was cut off is forgotten; a passing error costs nothing."""
        segment = next(one for one in found.segments.values() if at in found.of(one))
        slot = int(found.slots(np.array([at]))[0])
        reason = why or f"{segment.path.name}: NIXL did not read it whole"
        try:
            if segment.path.stat().st_size < (slot + 1) * segment.page_bytes:
                reason = f"{segment.path.name} is too short: its end was cut off"
                self._space.record([records(Kind.GONE, segment.number, slot, 0, [key])])
        except OSError as error:
            reason = f"{segment.path.name}: {error.strerror}"
        self._warn(segment, reason)
        return Failed(reason)

    def _unless_moved_on(
        self, keys: Sequence[PageKey], size: int, found: Found, results: list[PageResult]
    ) -> list[PageResult]:
        """What was read of segments that have left meanwhile is missing."""
        self._catalog.follow()
        if not any(segment.gone for segment in found.segments.values()):
            return results
        for segment in found.segments.values():
            if segment.gone:
                for at in found.of(segment).tolist():
                    results[at] = MISSING
        return results

    # --- writing ---------------------------------------------------------------------------------------------------

    def _to_write(self, keys: Sequence[PageKey], size: int, results: list[PageResult]) -> Which:
        """Which pages are not there yet, each key once."""
        odd = {at for at, length in enumerate(map(len, keys)) if length != KEY}
        self._fail(results, np.array(sorted(odd), dtype=np.intp), f"a key must have {KEY} bytes")
        absent = np.flatnonzero(self._catalog.find(keys, size).places < 0)
        if not odd and len(set(keys)) == len(keys):
            return absent
        first: dict[PageKey, int] = {}
        for at in absent.tolist():
            if at not in odd:
                first.setdefault(keys[at], at)
        return np.fromiter(first.values(), np.intp, len(first))

    def _place(self, which: Which, size: int, results: list[PageResult]) -> list[tuple[Tail, int, Which]]:
        """Where each page goes: runs of slots. Those without room have failed."""
        placed: list[tuple[Tail, int, Which]] = []
        with self._placing:
            while len(which):
                tail = self._tails.get(size)
                if tail is not None:
                    first, count = tail.take(len(which))
                    if count:
                        placed.append((tail, first, which[:count]))
                        which = which[count:]
                        continue
                    del self._tails[size]  # lets go of its lock with the last write to it
                try:
                    self._tails[size] = self._space.tail(size)
                except OSError as error:
                    self._warn(None, f"no room for pages: {error.strerror}")
                    self._fail(results, which, error.strerror or "no room")
                    break
        return placed

    def _publish(
        self, keys: Sequence[PageKey], which: Which, segment: Segment, slots: Which, results: list[PageResult]
    ) -> None:
        if not len(which):
            return
        pages = records(Kind.PAGE, segment.number, slots, int(time.time()), [keys[at] for at in which.tolist()])
        try:
            self._space.record([pages])
        except OSError as error:
            # Some of them may be there; what is not in the catalog is not visible.
            self._catalog.follow()
            there = self._catalog.find([keys[at] for at in which.tolist()]).places >= 0
            self._fail(results, which[~there], f"{NAME}: {error.strerror}")

    def _repeated(self, keys: Sequence[PageKey], written: Which, results: list[PageResult]) -> list[PageResult]:
        """A key that came more than once has one answer."""
        failed = {keys[at]: results[at] for at in written.tolist() if results[at] is not DONE}
        return [failed.get(key, result) for key, result in zip(keys, results, strict=True)] if failed else results

    # --- both ------------------------------------------------------------------------------------------------------

    def _attached(self) -> Lanes[FileLane]:
        if self._lanes is None:
            raise RuntimeError("the storage was not attached, or is closed")
        return self._lanes

    def _cuts(self, direct: bool) -> int:
        """Transfers that a batch is cut into. Through the page cache each copies as it is posted: nothing overlaps."""
        return self._transfers if direct else 1

    def _past_cache(self, pages: PageViews) -> bool:
        """Whether direct I/O can move these pages: blocks to blocks."""
        return self._direct and _size(pages) % BLOCK == 0 and not (pages.addresses % BLOCK).any()

    def _set_done(self, results: list[PageResult], which: Which) -> None:
        if len(which) == len(results):
            results[:] = repeat(DONE, len(results))
            return
        for at in which.tolist():
            results[at] = DONE

    def _fail(self, results: list[PageResult], which: Which, reason: str) -> None:
        if len(which):
            failure = Failed(reason)
            for at in which.tolist():
                results[at] = failure

    def _warn(self, about: Segment | None, text: str) -> None:
        """Say it once a segment; core counts the rest."""
        name = about.path.name if about else "room"
        if name not in self._warned and len(self._warned) < 1000:
            self._warned.add(name)
            self._log.warning("%s", text)


def open_folder(config: FolderConfig) -> Journal:
    """The folder's journal, or one sentence about why it cannot be used."""
    where = f"storage.path = {str(config.path)!r}"
    try:
        config.path.mkdir(parents=True, exist_ok=True)
        return Journal(config.path)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{where} is not a folder: name another") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be used ({error.strerror or error}): name another folder") from None


def can_direct(config: FolderConfig, direct: bool | str) -> bool:
    """Whether to go past the page cache; one sentence where that was insisted on in vain."""
    if not direct:
        return False
    try:
        os.close(os.open(config.path / NAME, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if direct == "auto":
            return False
        raise ConfigError(
            f"storage.direct = true, but the filesystem of {str(config.path)!r} has no direct I/O "
            f'({error.strerror}): set it to "auto"'
        ) from None
    return True


def _size(pages: PageViews) -> int:
    if len(pages.sizes) != 1:
        raise ValueError(f"pages of {len(pages.sizes)} segments: NIXL storage takes pages in one piece")
    return int(pages.sizes[0])
