"""Which page lies where: the sum of all index files, this process's and others', read as they grow.

A page takes about 350 bytes of memory here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stepwell_file.folder import Folder
from stepwell_file.record import Kind, Record, parse
from stepwell_file.segment import Segment, ours


class Entry(NamedTuple):
    """Where a page lies."""

    segment: Segment
    offset: int
    length: int
    checksum: int


class Written(NamedTuple):
    """Pages of one length that were just recorded in one append."""

    records: bytes
    pages: Sequence[tuple[bytes, int, int]]
    """Key, offset and checksum of each."""
    length: int

    @property
    def end(self) -> int:
        """Where the last of them ends."""
        return max(offset for _, offset, _ in self.pages) + self.length


class Catalog:
    """Pages by key. Locked as a whole; every call is short."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._entries: dict[bytes, Entry] = {}
        self._segments: dict[int, Segment] = {}
        self._lock = threading.RLock()

    def find(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """The entry of each key, as of now: other processes' deletes and evictions count, too."""
        with self._lock:
            get = self._entries.get
            found = [get(key) for key in keys]
            if None in found:
                self.follow()
                return [get(key) for key in keys]
            if [self._refresh(segment) for segment in {entry.segment for entry in found if entry}].count(True):
                return [get(key) for key in keys]
            return found

    def _refresh(self, segment: Segment) -> bool:
        """Take in what one segment's index says by now; whether that is news."""
        try:
            news = segment.index.stat().st_size > segment.followed
        except FileNotFoundError:
            self.drop(segment)
            return True
        if news:
            self._read_index(segment)
        return news

    def follow(self) -> None:
        """Take in what all processes have recorded since the last time."""
        with self._lock:
            there = self._folder.listed()
            if there is not None:
                for number in sorted(there - self._segments.keys()):
                    segment = Segment(self._folder.path, number)
                    if ours(segment.data):
                        self._segments[number] = segment
                for gone in self._segments.keys() - there:
                    self.drop(self._segments[gone])
            for segment in [one for one in self._segments.values() if not one.sealed]:
                self._refresh(segment)

    def follow_one(self, segment: Segment, written: Written | None = None) -> bool:
        """Take in what was recorded of one segment, which is added if it is new; False where it is not there.

        `written` is what was just recorded of it, so that nobody has to parse that.
        """
        with self._lock:
            self._segments.setdefault(segment.number, segment)
            there = self._read_index(segment, written)
            if not there:
                self.drop(segment)
            return there

    def _read_index(self, segment: Segment, written: Written | None = None) -> bool:
        try:
            size = segment.data.stat().st_size
            with segment.index.open("rb") as file:
                file.seek(segment.followed)
                data = file.read()
        except FileNotFoundError:  # evicted since it was listed
            return False
        if written is not None and data == written.records and size >= written.end:
            segment.followed += len(data)
            self._add(segment, written)
            return True
        records, consumed = parse(data)
        segment.followed += consumed
        for record in records:
            self._apply(segment, record, size)
        return True

    def _add(self, segment: Segment, written: Written) -> None:
        """The same as to apply each of the records."""
        entries, length = self._entries, written.length
        for key, offset, checksum in written.pages:
            old = entries.get(key)
            if old is not None:
                if old.segment.number > segment.number:
                    continue
                self._remove(key, old)
            entries[key] = Entry(segment, offset, length, checksum)
            segment.keys.append(key)
            segment.live += 1
        segment.used = max(segment.used, written.end)

    def _apply(self, segment: Segment, record: Record, size: int) -> None:
        if record.kind is Kind.SEALED:
            segment.sealed = True
            return
        old = self._entries.get(record.key)
        if record.kind is Kind.GONE:
            if old and old.segment is segment and old.offset == record.offset:
                self._remove(record.key, old)
            return
        end = record.offset + record.length
        segment.used = max(segment.used, end)
        if end > size or (old and old.segment.number > segment.number):
            return  # the data was cut, or a newer segment has it
        if old:
            self._remove(record.key, old)
        self._entries[record.key] = Entry(segment, record.offset, record.length, record.checksum)
        segment.keys.append(record.key)
        segment.live += 1

    def pages(self) -> list[tuple[bytes, Entry]]:
        """All pages of all processes, as of now."""
        with self._lock:
            self.follow()
            return list(self._entries.items())

    def forget(self, key: bytes, entry: Entry) -> bool:
        """Remove a page if it is still there; whether it was."""
        with self._lock:
            if self._entries.get(key) != entry:
                return False
            self._remove(key, entry)
            return True

    def _remove(self, key: bytes, entry: Entry) -> None:
        del self._entries[key]
        entry.segment.live -= 1
        entry.segment.hot.discard(key)

    def drop(self, segment: Segment) -> None:
        """Forget a segment that has left."""
        with self._lock:
            if self._segments.pop(segment.number, None) is None:
                return
            for key in segment.keys:
                entry = self._entries.get(key)
                if entry and entry.segment is segment:
                    self._remove(key, entry)

    def touch(self, keys: Iterable[tuple[bytes, Entry]]) -> None:
        """Note that pages were of use."""
        with self._lock:
            for key, entry in keys:
                entry.segment.hot.add(key)

    def hot(self, segment: Segment) -> list[tuple[bytes, Entry]]:
        """Pages of a segment that were of use, in the order in which they lie there."""
        with self._lock:
            entries = [(key, entry) for key in segment.hot if (entry := self._entries.get(key))]
        return sorted((pair for pair in entries if pair[1].segment is segment), key=lambda pair: pair[1].offset)

    def segment(self, number: int) -> Segment | None:
        """A segment by number."""
        with self._lock:
            return self._segments.get(number)

    def totals(self) -> tuple[int, int, int]:
        """(pages, their bytes, segments)."""
        with self._lock:
            return len(self._entries), sum(entry.length for entry in self._entries.values()), len(self._segments)
