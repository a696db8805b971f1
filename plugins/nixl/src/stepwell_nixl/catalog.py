"""Which page lies where: what the journal says so far, this process's records and others'.

A page takes about 250 bytes of memory here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell import PageKey, StoredPage
from stepwell_nixl.journal import KEY, Journal, Kind, Records, records
from stepwell_nixl.segment import Segment

ABSENT = -1
_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
LISTED = 1024
SLACK = 1 << 14
"""Records out of date that a journal may hold before it is written anew."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where the pages of a batch lie."""

    places: npt.NDArray[np.int64]
    """For each key the segment's number and the slot in one, or ABSENT."""
    segments: dict[int, Segment]

    def of(self, segment: Segment) -> npt.NDArray[np.intp]:
        """Which of the batch lie in a segment."""
        return np.flatnonzero(self.places >> _SLOT_BITS == segment.number)

    def slots(self, which: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Their slots."""
        return self.places[which] & _SLOT_MASK


class Catalog:
    """Pages by key. Locked as a whole; every call is short."""

    def __init__(self, folder: Path, journal: Journal, ttl_s: float) -> None:
        self._folder = folder
        self._journal = journal
        self._ttl_s = ttl_s
        self._places: dict[bytes, int] = {}
        self._lock = threading.RLock()
        self.segments: dict[int, Segment] = {}
        """Oldest first, as their numbers grow."""

    def find(self, keys: Sequence[PageKey], page_bytes: int = 0) -> Found:
        """Where pages (of one size) lie as of now: other processes' writes, deletes and evictions count, too."""
        with self._lock:
            self.follow()
            places = np.fromiter(map(self._places.get, keys, repeat(ABSENT)), np.int64, len(keys))
            held = {int(number): self.segments[int(number)] for number in np.unique(places[places >= 0] >> _SLOT_BITS)}
            found = Found(places, held)
            for segment in list(held.values()):
                if page_bytes and segment.page_bytes != page_bytes:
                    places[found.of(segment)] = ABSENT
                    del held[segment.number]
                elif self._ttl_s:
                    which = found.of(segment)
                    places[which[segment.stamps[found.slots(which)] < time.time() - self._ttl_s]] = ABSENT
            return found

    def follow(self) -> bool:
        """Take in what all processes have recorded since the last time; whether that was anything."""
        with self._lock:
            anew, news = self._journal.news()
            if anew:
                self._forget_all(set() if news is None else set(news["segment"][news["kind"] == Kind.OPENED].tolist()))
            if news is not None and len(news):
                for part in _alike(news):
                    self._apply(part)
            return anew or news is not None

    def unexpired(self, segment: Segment) -> bool:
        """Whether it holds a page that has not outlived its time."""
        return not self._ttl_s or bool((segment.stamps >= time.time() - self._ttl_s).any())

    def compact(self) -> None:
        """Write the journal anew where most of it is out of date. Only under the journal's `changing`."""
        with self._lock:
            if self._journal.length <= 2 * (len(self._places) + len(self.segments)) + SLACK:
                return
            parts = [opening(segment) for segment in self.segments.values()]
            for segment in self.segments.values():
                if segment.used:  # a slot is written once, though its page is gone
                    parts.append(records(Kind.GONE, segment.number, segment.used - 1, 0))
            keys = list(self._places)
            places = np.fromiter(self._places.values(), np.int64, len(keys))
            order = np.argsort(places, kind="stable")
            numbers = places[order] >> _SLOT_BITS
            for some in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(keys) else []:
                segment = self.segments[int(places[some[0]] >> _SLOT_BITS)]
                slots = places[some] & _SLOT_MASK
                part = records(Kind.PAGE, segment.number, slots, 0, [keys[at] for at in some])
                parts.append(restamped(part, segment.stamps[slots]))
            self._journal.replace(np.concatenate(parts) if parts else records(Kind.MARK, 0, [], 0))
            self.follow()

    def scan(self) -> Iterator[list[StoredPage]]:
        """All pages there are now, in lists."""
        with self._lock:
            self.follow()
            keys = list(self._places)
        for at in range(0, len(keys), LISTED):
            some = keys[at : at + LISTED]
            found = self.find(some)
            there = [int(place) >> _SLOT_BITS for place in found.places]
            yield [
                StoredPage(key, found.segments[number].page_bytes)
                for key, number in zip(some, there, strict=True)
                if number >= 0
            ]

    def close(self) -> None:
        """Let go of all data files."""
        with self._lock:
            self._places.clear()
            self.segments.clear()

    # --- what a record does ----------------------------------------------------------------------------------------

    def _apply(self, part: Records) -> None:
        """Records of one kind in one segment."""
        number = int(part["segment"][0])
        segment = self.segments.get(number)
        match int(part["kind"][0]):
            case Kind.OPENED if segment is None:
                size, slots = int(part["slot"][0]), int(part["stamp"][0])
                self.segments[number] = Segment(self._folder, number, size, slots)
            case Kind.PAGE if segment is not None:
                self._add(segment, part[part["slot"] < segment.slots])
            case Kind.GONE if segment is not None:
                segment.used = max(segment.used, int(part["slot"].max()) + 1)
                for key, slot in zip(_keys(part), part["slot"].tolist(), strict=True):
                    if self._places.get(key) == number << _SLOT_BITS | slot:
                        del self._places[key]
                        segment.live -= 1
            case Kind.DROPPED if segment is not None:
                self._drop(segment)

    def _add(self, segment: Segment, part: Records) -> None:
        keys = _keys(part)
        base = segment.number << _SLOT_BITS
        for key, slot in zip(keys, part["slot"].tolist(), strict=True):
            old = self._places.get(key)
            if old is not None:
                self.segments[old >> _SLOT_BITS].live -= 1
            self._places[key] = base | slot
        segment.keys += keys
        segment.live += len(keys)
        if keys:
            segment.used = max(segment.used, int(part["slot"].max()) + 1)
            segment.stamps[part["slot"]] = part["stamp"]

    def _drop(self, segment: Segment) -> None:
        del self.segments[segment.number]
        segment.gone = True
        for key in segment.keys:
            if self._places.get(key, ABSENT) >> _SLOT_BITS == segment.number:
                del self._places[key]

    def _forget_all(self, kept: set[int]) -> None:
        """The journal begins anew: segments that it names go on with their descriptors, all else is void."""
        self._places.clear()
        for number, segment in list(self.segments.items()):
            if number not in kept:
                segment.gone = True
                del self.segments[number]
            segment.keys, segment.live, segment.used = [], 0, 0


def opening(segment: Segment) -> Records:
    """The record that begins a segment."""
    return records(Kind.OPENED, segment.number, segment.page_bytes, segment.slots)


def restamped(part: Records, stamps: npt.NDArray[np.uint32]) -> Records:
    """The same pages with these stamps."""
    return np.concatenate(
        [
            records(Kind.PAGE, int(part["segment"][0]), same["slot"], int(same["stamp"][0]), _keys(same))
            for same in _alike_by(_with(part, stamps), "stamp")
        ]
    )


def _with(part: Records, stamps: npt.NDArray[np.uint32]) -> Records:
    part["stamp"] = stamps
    return part


def _alike(some: Records) -> list[Records]:
    """Runs of records of one kind in one segment."""
    changes = (np.diff(some["segment"]) != 0) | (np.diff(some["kind"]) != 0)
    return np.split(some, np.flatnonzero(changes) + 1)


def _alike_by(some: Records, field: str) -> list[Records]:
    return np.split(some, np.flatnonzero(np.diff(some[field]) != 0) + 1)


def _keys(part: Records) -> list[bytes]:
    data = part["key"].tobytes()
    return [data[at : at + KEY] for at in range(0, len(data), KEY)]
