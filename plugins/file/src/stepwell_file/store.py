"""The store: batches of pages, straight between the arena's memory and packed segment files.

Why packed: one file a page costs its creation and rename. On ext4 with 256 KiB pages and direct I/O, four threads put
1.0 GB/s and got 1.7 with a file a page; packed, with neighbours moved in one call, they put 2.4 (4.5 in segments that
were used before) and got 2.0.

A page becomes visible with its index record, which is appended once its bytes are in place. The record holds a
checksum of the bytes, and reading checks it: truncated, flipped, swapped or foreign bytes are never taken for a page,
whoever put them there, and an eviction by another process in the middle of a read is a miss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepwell import DONE, MISSING, Context, Failed, PageKey, PageResult, PageViews, Storage, StoredPage
from stepwell_file.catalog import Catalog, Entry, Written
from stepwell_file.config import FileConfig
from stepwell_file.disk import Disk, Short, transfer
from stepwell_file.folder import Folder
from stepwell_file.lanes import Lanes
from stepwell_file.record import KEY_MAX, Kind, Record, digest, pack_pages
from stepwell_file.retire import Retirer
from stepwell_file.segment import BLOCK, Segment, Tail, append_gone
from stepwell_file.space import Space

CALL_BYTES = 4 << 20
CALL_PAGES = 256
"""Most bytes and pages in one system call. Larger ones gain nothing, and let threads wait for the last of a batch."""

SCAN_PAGES = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """What the folder holds, as this process sees it."""

    pages: int
    page_bytes: int
    segments: int
    limit_bytes: int
    evicted_segments: int
    rescued_pages: int
    """Pages that were of use and outlived their segment."""
    damaged_pages: int
    """Pages that were found to be damaged, and forgotten."""
    direct: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Pages that lie next to each other in one segment."""

    segment: Segment
    offset: int
    which: Sequence[int]
    """Their places in the batch."""


@dataclass(frozen=True, slots=True)
class Span:
    """Room for pages next to each other at the end of a segment."""

    tail: Tail
    offset: int
    which: Sequence[int]

    def runs(self, size: int, most: int) -> list[Run]:
        """Parts of at most so many pages."""
        segment, offset, which = self.tail.segment, self.offset, self.which
        return [Run(segment, offset + at * size, which[at : at + most]) for at in range(0, len(which), most)]


class Stored(NamedTuple):
    """Pages of a batch whose bytes are in place."""

    which: Sequence[int]
    pages: Sequence[tuple[PageKey, int, int]]
    """Key, offset and checksum of each."""


class FileStorage(Storage):
    """Pages in a folder."""

    def __init__(self, config: FileConfig, context: Context, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._durable = config.durable
        self._log = context.log
        self._folder = Folder(config)
        self._catalog = Catalog(self._folder)
        self._catalog.follow()
        self._space = Space(config, self._folder, self._catalog, self._disk)
        self._lanes = Lanes(config.threads)
        self._retirer = Retirer(self._space, self._catalog, self._log)
        self._placing = threading.Lock()
        self._tail: Tail | None = None
        self._damaged = 0
        self._warned: set[str] = set()

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        return [entry is not None for entry in self._catalog.find(keys)]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        return self._fetch(keys, into, self._catalog.find(keys))

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        size = _size(pages)
        results: list[PageResult] = [DONE] * len(keys)
        entries = self._catalog.find(keys)
        first: dict[PageKey, int] = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        which: Sequence[int] = range(len(keys))
        if not len(first) == len(keys) == entries.count(None) or max(map(len, keys), default=0) > KEY_MAX:
            which = self._wanted(keys, entries, first, size, results)
        failed = self._store(keys, pages, which)
        if not failed:
            return results
        for at, result in failed.items():
            results[at] = result
        return [results[first[key]] for key in keys]

    def _wanted(
        self,
        keys: Sequence[PageKey],
        entries: Sequence[Entry | None],
        first: dict[PageKey, int],
        size: int,
        results: list[PageResult],
    ) -> list[int]:
        """The pages of a batch to write: each key once, and none that is there."""
        which: list[int] = []
        held: list[tuple[PageKey, Entry]] = []
        for at, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if len(key) > KEY_MAX:
                results[at] = Failed(f"a key of {len(key)} bytes; {KEY_MAX} is the most")
            elif entry is not None and entry.length == size:
                held.append((key, entry))
            elif first[key] == at:
                which.append(at)
        self._catalog.touch(held)
        return which

    def delete(self, keys: Sequence[PageKey]) -> None:
        touched: dict[Segment, list[Record]] = {}
        for key, entry in zip(keys, self._catalog.find(keys), strict=True):
            if entry is not None and self._catalog.forget(key, entry):
                touched.setdefault(entry.segment, []).append(_gone(key, entry))
        for segment, records in touched.items():
            append_gone(self._disk, segment, records)
        self._space.sweep(touched)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        pages = self._catalog.pages()
        for at in range(0, len(pages), SCAN_PAGES):
            yield [StoredPage(key, entry.length) for key, entry in pages[at : at + SCAN_PAGES]]

    def close(self) -> None:
        self._retirer.close()
        self._lanes.close()
        with self._placing:
            if self._tail is not None:
                self._tail.trim()
            self._tail = None

    def usage(self) -> Usage:
        """Figures for an administrator."""
        pages, page_bytes, segments = self._catalog.totals()
        return Usage(
            pages=pages,
            page_bytes=page_bytes,
            segments=segments,
            limit_bytes=self._space.limit,
            evicted_segments=self._space.evicted,
            rescued_pages=self._retirer.rescued,
            damaged_pages=self._damaged,
            direct=self._folder.direct,
        )

    # --- reading -------------------------------------------------------------------------------------------------

    def _fetch(self, keys: Sequence[PageKey], into: PageViews, entries: Sequence[Entry | None]) -> list[PageResult]:
        results: list[PageResult] = [MISSING] * len(keys)
        size = _size(into)
        buffers = into.buffers()
        held = [(entry, at) for at, entry in enumerate(entries) if entry is not None and entry.length == size]
        held.sort(key=lambda pair: (pair[0].segment.number, pair[0].offset))
        runs = self._cut([(entry.segment, entry.offset, at) for entry, at in held], size)
        direct = self._direct(into)

        def get(run: Run) -> None:
            for at, error in zip(run.which, self._read_run(run, buffers, direct), strict=True):
                entry = entries[at]
                assert entry is not None
                if error is None and digest(buffers[at]) == entry.checksum:
                    results[at] = DONE
                elif entry.segment.there:
                    results[at] = self._bad(keys[at], entry, error)

        self._lanes.run([_bind(get, run) for run in runs])
        self._catalog.touch((keys[at], entry) for entry, at in held if results[at] is DONE)
        return results

    def _read_run(self, run: Run, buffers: Sequence[memoryview], direct: bool) -> Sequence[OSError | None]:
        try:
            fds = run.segment.fds(direct and run.offset % BLOCK == 0)
        except OSError as error:
            return [error] * len(run.which)
        return transfer(self._disk.read, fds, [buffers[at] for at in run.which], run.offset)

    def _bad(self, key: PageKey, entry: Entry, error: OSError | None) -> Failed:
        """A page that could not be read. What can never be read again is forgotten; a passing error costs nothing."""
        reason = (
            f"{entry.segment.data.name}: {error.strerror if error else 'the bytes are not those that were written'}"
        )
        self._warn(f"{entry.segment.number} {type(error).__name__}", reason)
        if (error is None or isinstance(error, Short)) and self._catalog.forget(key, entry):
            self._damaged += 1
            try:
                append_gone(self._disk, entry.segment, [_gone(key, entry)])
            except OSError as why:
                self._warn("index", f"{entry.segment.index.name}: {why.strerror}")
        return Failed(reason)

    # --- writing -------------------------------------------------------------------------------------------------

    def _store(self, keys: Sequence[PageKey], pages: PageViews, which: Sequence[int]) -> dict[int, PageResult]:
        """Write these pages of a batch: space first, then bytes, then records. Those that failed, and why."""
        size = _size(pages)
        buffers = pages.buffers()
        direct = self._direct(pages)
        failed: dict[int, PageResult] = {}
        placed = self._place(which, size, failed)
        most = self._most(len(which), size)
        written: dict[Segment, list[Stored]] = {span.tail.segment: [] for span in placed}

        def put(run: Run) -> None:
            sums = list(map(digest, [buffers[at] for at in run.which]))
            errors = self._write_run(run, buffers, direct)
            offsets = range(run.offset, run.offset + len(sums) * size, size)
            stored = Stored(run.which, list(zip([keys[at] for at in run.which], offsets, sums, strict=True)))
            if any(errors):
                good = [nth for nth, error in enumerate(errors) if error is None]
                for at, error in zip(run.which, errors, strict=True):
                    if error is not None:
                        failed[at] = Failed(f"{run.segment.data.name}: {error.strerror}")
                stored = Stored([run.which[nth] for nth in good], [stored.pages[nth] for nth in good])
            if stored.which:
                written[run.segment].append(stored)

        self._lanes.run([_bind(put, run) for span in placed for run in span.runs(size, most)])
        for tail in {span.tail.segment: span.tail for span in placed}.values():
            if written[tail.segment]:
                self._publish(tail, written[tail.segment], size, failed)
        return failed

    def _place(self, which: Sequence[int], size: int, failed: dict[int, PageResult]) -> list[Span]:
        """Where each page goes. Those without room have failed."""
        placed: list[Span] = []
        done = 0
        with self._placing:
            while done < len(which):
                if self._tail is not None:
                    offset, fits = self._tail.take(size, len(which) - done)
                    if fits:
                        placed.append(Span(self._tail, offset, which[done : done + fits]))
                        done += fits
                        continue
                self._tail = None  # lets go of its lock with the last write to it
                try:
                    self._tail = self._space.acquire(size)
                except OSError as error:
                    self._warn("room", f"no room for pages: {error.strerror}")
                    failed.update((at, Failed(f"no room: {error.strerror}")) for at in which[done:])
                    break
                self._retirer.consider(self._carry)
        return placed

    def _write_run(self, run: Run, buffers: Sequence[memoryview], direct: bool) -> Sequence[OSError | None]:
        try:
            fds = run.segment.fds(direct and run.offset % BLOCK == 0)
        except OSError as error:
            return [error] * len(run.which)
        return transfer(self._disk.write, fds, [buffers[at] for at in run.which], run.offset)

    def _publish(self, tail: Tail, written: list[Stored], size: int, failed: dict[int, PageResult]) -> None:
        written.sort(key=lambda one: one.pages[0][1])
        pages = [page for stored in written for page in stored.pages]
        records = pack_pages(pages, size)
        why = None
        try:
            tail.publish(records, self._durable)
        except OSError as error:
            why = f"{tail.segment.index.name}: {error.strerror}"
        if not self._catalog.follow_one(tail.segment, Written(records, pages, size)):
            why = f"{tail.segment.index.name}: somebody has removed it"
            with self._placing:
                if self._tail is tail:
                    self._tail = None
        if why is not None:
            failed.update((at, Failed(why)) for stored in written for at in stored.which)

    def _carry(self, keys: Sequence[PageKey], entries: Sequence[Entry], through: PageViews) -> int:
        """Copy pages to the newest segment; how many arrived."""
        results = self._fetch(keys, through, entries)
        good = [at for at, result in enumerate(results) if result is DONE]
        return len(good) - len(self._store(keys, through, good))

    # --- both ----------------------------------------------------------------------------------------------------

    def _cut(self, places: Sequence[tuple[Segment, int, int]], size: int) -> list[Run]:
        """Runs of neighbours, none so long that a thread would have nothing to do."""
        most = self._most(len(places), size)
        runs: list[Run] = []
        which: list[int] = []
        for segment, offset, at in places:
            last = runs[-1] if runs else None
            if last and last.segment is segment and offset == last.offset + len(which) * size and len(which) < most:
                which.append(at)
                continue
            which = [at]
            runs.append(Run(segment, offset, which))
        return runs

    def _most(self, count: int, size: int) -> int:
        """Pages of one call, where `count` are moved."""
        return max(1, min(CALL_PAGES, CALL_BYTES // max(size, 1), -(-count // self._lanes.count)))

    def _direct(self, pages: PageViews) -> bool:
        """Whether direct I/O can move these pages: blocks to blocks."""
        return self._folder.direct and _size(pages) % BLOCK == 0 and not (pages.addresses % BLOCK).any()

    def _warn(self, about: str, text: str) -> None:
        """Say it once; core counts the rest."""
        if about not in self._warned and len(self._warned) < 1000:
            self._warned.add(about)
            self._log.warning("%s", text)


def _size(pages: PageViews) -> int:
    return int(pages.sizes.sum())


def _gone(key: PageKey, entry: Entry) -> Record:
    return Record(Kind.GONE, key, entry.offset, entry.length, entry.checksum)


def _bind(work: Callable[[Run], None], run: Run) -> Callable[[], None]:
    return lambda: work(run)
