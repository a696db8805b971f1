"""Where each page lies: what this process has stored, and what the index files of the others say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stepwell import PageKey
from stepwell_threefs.folder import Folder
from stepwell_threefs.record import Kind, Record
from stepwell_threefs.segment import Segment


class Entry(NamedTuple):
    """A page in a segment. Two processes may have stored the same page: `older` is the other one."""

    segment: Segment
    offset: int
    length: int
    checksum: int
    older: Entry | None


class Catalog:
    """Thread-safe; looking up takes no lock."""

    def __init__(self, folder: Folder, log: logging.Logger) -> None:
        self._folder, self._log = folder, log
        self._lock = threading.RLock()
        self._began = -1.0
        self.entries: dict[PageKey, Entry] = {}
        self.segments: dict[int, Segment] = {}
        self._early: dict[int, set[int]] = {}
        """Deletions in segments that are not known yet."""
        self._unread: set[int] = set()
        """Segments of which it was said that their index cannot be read."""

    def follow(self, at_most_s: float = 0.0) -> None:
        """Read what is new, unless somebody began to do so since this was asked, or `at_most_s` before."""
        asked = time.monotonic()
        if self._began >= asked - at_most_s:
            return
        with self._lock:
            if self._began >= asked - at_most_s:
                return
            self._began = time.monotonic()
            there = self._folder.segments()
            for number in self.segments.keys() - there.keys():
                self.drop(self.segments[number])
            for number, stem in there.items():
                if number not in self.segments:
                    self.add_segment(Segment(self._folder, stem))
            for segment in [*self.segments.values()]:
                if not segment.sealed and type(segment) is Segment:
                    self._follow_one(segment)

    def _follow_one(self, segment: Segment) -> None:
        """Read what is new in one index. One that cannot be read hides its own pages and no others."""
        try:
            self.add(segment, segment.news())
        except OSError as error:
            if segment.number not in self._unread:
                self._unread.add(segment.number)
                self._log.warning("%s.index cannot be read: %s", segment.stem, error.strerror or error)

    def add_segment(self, segment: Segment) -> None:
        """A segment that was not known."""
        with self._lock:
            self.segments[segment.number] = segment
            segment.buried |= self._early.pop(segment.number, set())

    def add(self, segment: Segment, records: Iterable[Record]) -> None:
        """What an index file says."""
        with self._lock:
            for record in records:
                if record.kind is Kind.PAGE:
                    segment.used = max(segment.used, record.offset + record.length)
                    if record.offset not in segment.buried and segment.number in self.segments:
                        entry = Entry(segment, record.offset, record.length, record.value, self.entries.get(record.key))
                        self.entries[record.key] = entry
                        segment.keys.append(record.key)
                        segment.live += 1
                elif record.kind is Kind.GONE:
                    self._bury(record)

    def add_pages(self, segment: Segment, pages: Sequence[tuple[PageKey, int, int]], length: int) -> None:
        """Pages of one length that this process has just stored, of which each is (key, offset, checksum)."""
        with self._lock:
            if segment.number not in self.segments:
                return  # somebody has removed it meanwhile
            entries = self.entries
            for key, offset, checksum in pages:
                entries[key] = Entry(segment, offset, length, checksum, entries.get(key))
                segment.keys.append(key)
            segment.live += len(pages)
            segment.used = max(segment.used, max(offset for _, offset, _ in pages) + length)

    def take(self, keys: Sequence[PageKey]) -> list[tuple[PageKey, Entry]]:
        """Forget keys; all places where they were."""
        with self._lock:
            gone = []
            for key in keys:
                entry = self.entries.pop(key, None)
                while entry is not None:
                    entry.segment.buried.add(entry.offset)
                    entry.segment.live -= 1
                    gone.append((key, entry))
                    entry = entry.older
            return gone

    def lose(self, key: PageKey, entry: Entry) -> None:
        """Forget one place of a page: its bytes are not there."""
        with self._lock:
            self._without(key, entry.segment, entry.offset)

    def drop(self, segment: Segment) -> None:
        """Forget a segment that is gone."""
        with self._lock:
            if self.segments.pop(segment.number, None) is None:
                return
            for key in segment.keys:
                self._without(key, segment, None)
            segment.keys.clear()
            segment.close()

    def used(self) -> int:
        """Bytes that all segments take."""
        with self._lock:
            return sum(segment.used for segment in self.segments.values())

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for segment in self.segments.values():
                segment.close()
            self.segments.clear()
            self.entries.clear()

    def _bury(self, record: Record) -> None:
        segment = self.segments.get(record.value)
        if segment is None:
            self._early.setdefault(record.value, set()).add(record.offset)
            return
        segment.buried.add(record.offset)
        self._without(record.key, segment, record.offset)

    def _without(self, key: PageKey, segment: Segment, offset: int | None) -> None:
        """Take a page's places in a segment, or the one at an offset, out of its chain."""
        entry = self.entries.get(key)
        kept: list[Entry] = []
        while entry is not None:
            if entry.segment is segment and offset in (None, entry.offset):
                segment.live -= 1
            else:
                kept.append(entry)
            entry = entry.older
        rebuilt: Entry | None = None
        for one in reversed(kept):
            rebuilt = one._replace(older=rebuilt)
        if rebuilt is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = rebuilt
