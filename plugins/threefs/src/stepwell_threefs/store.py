"""The store: batches of pages in segment files that a process writes alone and everybody reads.

A few large files, since each file costs 3FS a transaction or several on its metadata, whatever its size. A page is
there for others with its record in the index file, which is appended and synced when the page's bytes are in place.
Each record has a checksum of the bytes, which reading checks: whatever another node has deleted, evicted or left half
written meanwhile is a miss and never a wrong page. To delete a page is to damage its first bytes, so nobody reads it
from then on, whatever they believe of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Iterator, Sequence

from stepwell import DONE, MISSING, ArenaView, Context, Failed, PageKey, PageResult, PageViews, Storage, StoredPage
from stepwell_threefs.catalog import Catalog, Entry
from stepwell_threefs.config import ThreefsConfig
from stepwell_threefs.folder import Folder
from stepwell_threefs.moves import Mover, Place
from stepwell_threefs.posix import PosixMover
from stepwell_threefs.record import KEY_BYTES, Kind, Record, digest, pack_pages
from stepwell_threefs.segment import Segment, Tail

SPOILED_BYTES = 64
LISTED = 1000


class ThreefsStorage(Storage):
    """Pages in a folder on 3FS, or on any other filesystem."""

    def __init__(self, config: ThreefsConfig, context: Context) -> None:
        self._config, self._log = config, context.log
        self._folder = Folder(config)
        self._mover = mover_of(config, self._folder, context)
        self._catalog = Catalog(self._folder, self._log)
        self._writing = threading.Lock()
        self._tail: Tail | None = None
        self._closed = False
        self._catalog.follow()

    def attach(self, arena: ArenaView) -> None:
        self._mover.attach(arena)

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        return [entry is not None for entry in self._find(keys)]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        size = int(into.sizes.sum())
        entries = self._find(keys)
        results: list[PageResult] = [MISSING] * len(keys)
        held = [(at, entry) for at, entry in enumerate(entries) if entry is not None and entry.length == size]
        places = [Place(entry.segment, entry.offset, at) for at, entry in held]
        sums, failed = self._moved(places, into, write=False)
        for at, entry in held:
            if at in failed:
                results[at] = self._unread(keys[at], entry, failed[at])
            elif sums[at] == entry.checksum:
                results[at] = DONE
            else:
                self._catalog.lose(keys[at], entry)
        return results

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        size = int(pages.sizes.sum())
        entries = self._catalog.entries
        # A page that is there according to the catalog may have been deleted or evicted by another node.
        self._catalog.follow(0.0 if any(key in entries for key in keys) else self._config.refresh_s)
        results: list[PageResult] = [DONE] * len(keys)
        first: dict[PageKey, int] = {}
        for at, key in enumerate(keys):
            entry = entries.get(key)
            if len(key) != KEY_BYTES:
                results[at] = Failed(f"a key of {len(key)} bytes, not {KEY_BYTES}")
            elif entry is None or entry.length != size:
                first.setdefault(key, at)
        for at, result in self._store(keys, pages, list(first.values()), size).items():
            results[at] = result
        return [results[first.get(key, at)] for at, key in enumerate(keys)]

    def delete(self, keys: Sequence[PageKey]) -> None:
        self._catalog.follow()
        gone = self._catalog.take(keys)
        if not gone:
            return
        touched: dict[int, Segment] = {}
        for _, entry in gone:
            self._spoil(entry)  # even where its file is removed below: others may have that open
            touched[entry.segment.number] = entry.segment
        empty = [segment for segment in touched.values() if segment.live <= 0 and segment.sealed]
        for segment in empty:
            self._catalog.drop(segment)
            self._folder.remove(segment.stem)
        records = [Record(Kind.GONE, key, one.offset, one.length, one.segment.number).pack() for key, one in gone]
        with self._writing:
            try:
                self._open_tail(0).append(b"".join(records))
            except OSError as error:
                self._tail = None
                self._log.warning("deletions are not recorded (%s): others find out when they read", error.strerror)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        self._catalog.follow()
        pages = [StoredPage(key, entry.length) for key, entry in list(self._catalog.entries.items())]
        for at in range(0, len(pages), LISTED):
            yield pages[at : at + LISTED]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._writing:
            if self._tail is not None:
                self._tail.seal()
            self._tail = None
        self._catalog.close()
        self._mover.close()

    def _moved(self, places: Sequence[Place], pages: PageViews, *, write: bool) -> tuple[list[int], dict[int, str]]:
        """Move pages: checksums of those that were, summed up while others are under way, and why the rest were not."""
        sums = [0] * len(pages)
        if not places:
            return sums, {}
        buffers = pages.buffers()

        def moved(at: int) -> None:
            sums[at] = digest(buffers[at])

        return sums, self._mover.move(places, pages, moved, write=write)

    # --- reading -------------------------------------------------------------------------------------------------

    def _find(self, keys: Sequence[PageKey]) -> list[Entry | None]:
        entries = self._catalog.entries
        found = [entries.get(key) for key in keys]
        if None not in found:
            return found
        self._catalog.follow(self._config.refresh_s)
        return [entries.get(key) for key in keys]

    def _unread(self, key: PageKey, entry: Entry, why: str) -> PageResult:
        """A page that could not be read: missing where its segment is gone. What can never be read is not kept."""
        self._catalog.follow()
        if entry.segment.number not in self._catalog.segments:
            return MISSING
        place: Entry | None = entry
        while place is not None and not place.segment.reaches(place.offset + place.length):
            self._catalog.lose(key, place)
            place = place.older
        return Failed(why)

    def _spoil(self, entry: Entry) -> None:
        try:
            handle = entry.segment.open(os.O_RDWR)
            os.pwrite(handle.fd, secrets.token_bytes(min(SPOILED_BYTES, entry.length)), entry.offset)
            if self._folder.remote:
                os.fsync(handle.fd)
        except OSError as error:
            if entry.segment.number in self._catalog.segments:
                self._log.warning("%s: a page is not deleted for other nodes yet: %s", entry.segment.stem, error)

    # --- writing -------------------------------------------------------------------------------------------------

    def _store(
        self, keys: Sequence[PageKey], pages: PageViews, which: Sequence[int], size: int
    ) -> dict[int, PageResult]:
        """Write these pages of a batch: room first, then bytes, then records."""
        results: dict[int, PageResult] = {}
        if not which:
            return results
        placed = self._place(which, size, results)
        sums, failed = self._moved(placed, pages, write=True)
        results.update((at, Failed(why)) for at, why in failed.items())
        stored: dict[int, list[tuple[PageKey, int, int]]] = {}
        segment: Segment | None = None
        into: list[tuple[PageKey, int, int]] = []
        for place in placed:
            if place[0] is not segment:
                segment = place[0]
                into = stored.setdefault(segment.number, [])
            at = place[2]
            if at not in failed:
                into.append((keys[at], place[1], sums[at]))
                results[at] = DONE
        for segment in {place[0].number: place[0] for place in placed}.values():
            why = self._publish(segment, stored[segment.number], size)
            if why is not None:
                lost = [place.at for place in placed if place.segment is segment and place.at not in failed]
                results.update((at, Failed(why)) for at in lost)
        return results

    def _place(self, which: Sequence[int], size: int, results: dict[int, PageResult]) -> list[Place]:
        """Where each page goes. Those without room have failed."""
        placed: list[Place] = []
        tails: dict[int, Tail] = {}
        with self._writing:
            while len(placed) < len(which):
                try:
                    tail = self._open_tail(size)
                except OSError as error:
                    results.update((at, Failed(f"no room: {error.strerror}")) for at in which[len(placed) :])
                    break
                offset, fits = tail.take(size, len(which) - len(placed))
                placed += [
                    Place(tail, offset + nth * size, at)
                    for nth, at in enumerate(which[len(placed) : len(placed) + fits])
                ]
                if fits:
                    tails[tail.number] = tail
                else:
                    self._full(tail)
            for tail in tails.values():
                tail.under_way += 1
        return placed

    def _publish(self, segment: Segment, stored: Sequence[tuple[PageKey, int, int]], size: int) -> str | None:
        """Make pages known; why that failed, else None."""
        assert isinstance(segment, Tail)
        with self._writing:
            segment.under_way -= 1
            try:
                if stored:
                    segment.append(pack_pages(stored, size))
                    self._catalog.add_pages(segment, stored, size)
            except OSError as error:
                self._full(segment)
                return f"{segment.stem}: {error.strerror}"
            finally:
                segment.seal_if_done()
        return None

    def _open_tail(self, size: int) -> Tail:
        """The segment that this process writes; a new one where there is none, or where somebody has removed it."""
        if self._tail is not None and self._tail.number not in self._catalog.segments:
            self._tail = None
        if self._tail is None:
            nbytes = max(self._config.segment_bytes, size)
            if size > self._config.limit_bytes:
                raise OSError(errno.ENOSPC, f"a page of {size} bytes is larger than storage.gib")
            self._make_room(nbytes)
            self._tail = Tail(self._folder, self._folder.new_stem(), nbytes)
            self._catalog.add_segment(self._tail)
        return self._tail

    def _full(self, tail: Tail) -> None:
        """Nothing more goes into a segment; it is sealed when what is under way has ended."""
        if self._tail is tail:
            self._tail = None
        tail.full = True
        tail.seal_if_done()

    def _make_room(self, nbytes: int) -> None:
        """Remove the oldest segments until there is room for a new one."""
        self._catalog.follow()
        excess = self._catalog.used() + nbytes - self._config.limit_bytes
        for number, stem in self._folder.segments().items():
            if excess <= 0:
                return
            segment = self._catalog.segments.get(number)
            try:
                self._folder.remove(stem)
            except OSError as error:  # not ours to remove: another one leaves
                self._log.warning("%s cannot be removed: %s", stem, error.strerror or error)
                continue
            excess -= segment.used if segment else 0
            if segment is not None:
                self._catalog.drop(segment)


def mover_of(config: ThreefsConfig, folder: Folder, context: Context) -> Mover:
    """USRBIO where it is there and wanted, else the mount."""
    from stepwell_threefs.usrbio import usrbio_of

    return usrbio_of(config, context) or PosixMover(folder, config.threads)
