"""Room for new pages: which segment takes them, and which leaves when the folder is full.

Segments leave whole and oldest first, so writing is sequential, nothing that a reader may hold is moved, and there is
no bookkeeping of holes. The file of one that leaves becomes the next one's where the size fits: on ext4, writing over
blocks that are in use already is up to twice as fast as writing to fresh ones.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stepwell_nixl.catalog import Catalog, opening
from stepwell_nixl.config import FolderConfig
from stepwell_nixl.journal import Journal, Kind, Records, records
from stepwell_nixl.segment import Segment, Tail, claim, number_of, path_of

GIB = 1 << 30
MIB = 1 << 20


class Space:
    """Gives out tails within the limit."""

    def __init__(self, config: FolderConfig, journal: Journal, catalog: Catalog) -> None:
        self._folder = config.path
        self._journal, self._catalog = journal, catalog
        room = os.statvfs(self._folder)
        whole = room.f_blocks * room.f_frsize
        self.limit = int(min(config.gib * GIB, whole))
        self._min_free = int(min(config.min_free_gib * GIB, whole / 20))
        self._segment_bytes = int(min(max(config.segment_mib * MIB, self.limit / 256), self.limit / 16))
        self.evicted = 0
        """Segments that left for want of room."""

    def record(self, what: Sequence[Records]) -> None:
        """Put records into the journal, and so into every process's catalog. OSError where it cannot be written."""
        with self._journal.changing():
            self._catalog.follow()
            for some in what:
                self._journal.append(some)
            self._catalog.follow()
            self._catalog.compact()

    def tail(self, page_bytes: int) -> Tail:
        """Free slots for pages of this size that nobody else writes to. OSError where there can be none."""
        slots = max(1, self._segment_bytes // page_bytes)
        with self._journal.changing():
            self._catalog.follow()
            self._drop_expired()
            sizes = self._sizes()
            return self._adopt(page_bytes, sizes) or self._create(page_bytes, slots, sizes)

    def sweep(self, numbers: Sequence[int]) -> None:
        """Remove those of the segments that hold no page any more and have no writer."""
        with self._journal.changing():
            self._catalog.follow()
            for segment in [one for number in numbers if (one := self._catalog.segments.get(number))]:
                if segment.live == 0:
                    self._leave(segment, keep=False)

    # --- under the journal's lock ----------------------------------------------------------------------------------

    def _sizes(self) -> dict[int, int]:
        """Bytes of every data file. One that no record names was left by a process that was killed: it goes."""
        sizes = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                number = number_of(entry.name)
                if number in self._catalog.segments:
                    sizes[number] = entry.stat().st_size
                elif number is not None:
                    _remove(Path(entry.path))
        return sizes

    def _adopt(self, page_bytes: int, sizes: dict[int, int]) -> Tail | None:
        """Go on with a segment that has room and no living writer."""
        for number in sorted(sizes, reverse=True):
            segment = self._catalog.segments[number]
            if segment.page_bytes != page_bytes or segment.used >= segment.slots:
                continue
            growth = segment.nbytes - sizes[number]
            if growth > min(self.limit - sum(sizes.values()), self._free() - self._min_free):
                continue
            lock = claim(segment.path)
            if lock is None:
                continue
            try:
                os.posix_fallocate(lock, 0, segment.nbytes)
            except OSError:
                os.close(lock)
                continue
            return Tail(segment, lock)
        return None

    def _create(self, page_bytes: int, slots: int, sizes: dict[int, int]) -> Tail:
        """Begin a segment, in the file of one that leaves if need be."""
        # The time, so that no number comes twice, though all segments may have left.
        number = max([*self._catalog.segments, int(time.time()) & 0x3FFFFFFF]) + 1
        slots, left = self._make_room(page_bytes, slots, sizes)
        path = path_of(self._folder, number)
        if left is not None:
            left.rename(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        lock = None
        try:
            os.posix_fallocate(fd, 0, page_bytes * slots)
            os.truncate(fd, page_bytes * slots)
            lock = claim(path)
            self._journal.append(opening(Segment(self._folder, number, page_bytes, slots)))
            self._catalog.follow()
        except OSError:
            path.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)
            raise
        finally:
            os.close(fd)
        if lock is None:
            raise OSError(errno.EAGAIN, "the new segment is locked by another process")
        return Tail(self._catalog.segments[number], lock)

    def _make_room(self, page_bytes: int, slots: int, sizes: dict[int, int]) -> tuple[int, Path | None]:
        """(slots of the next segment, a file to make it of), after as many have left as must."""
        if page_bytes > self.limit:
            raise OSError(errno.ENOSPC, f"no room: a page of {page_bytes} bytes is more than the limit of {self.limit}")
        while True:
            room = min(self.limit - sum(sizes.values()), self._free() - self._min_free)
            if room >= page_bytes * slots:
                return slots, None
            for number in sorted(sizes):
                segment = self._catalog.segments[number]
                fits = sizes[number] == page_bytes * slots and sum(sizes.values()) <= self.limit
                if self._leave(segment, keep=fits):
                    self.evicted += 1
                    del sizes[number]
                    if fits:
                        return slots, segment.path
                    break
            else:
                if room >= page_bytes:
                    return room // page_bytes, None
                raise OSError(
                    errno.ENOSPC,
                    f"no room: {sum(sizes.values())} of {self.limit} bytes are held by writers, {self._free()} are "
                    f"free and {self._min_free} are left to others",
                )

    def _leave(self, segment: Segment, *, keep: bool) -> bool:
        """Let a segment leave unless somebody writes to it; whether it did. Its file may be kept for the next one."""
        lock = claim(segment.path)
        if lock is None and segment.path.exists():
            return False
        try:
            # First this, then the file: a reader looks here again when it has read.
            self._journal.append(records(Kind.DROPPED, segment.number, 0, 0))
            self._catalog.follow()
            if not keep:
                _remove(segment.path)
        finally:
            if lock is not None:
                os.close(lock)
        return lock is not None

    def _drop_expired(self) -> None:
        for segment in list(self._catalog.segments.values()):
            if segment.used and not self._catalog.unexpired(segment):
                self._leave(segment, keep=False)

    def _free(self) -> int:
        room = os.statvfs(self._folder)
        return room.f_bavail * room.f_frsize


def trim(tail: Tail) -> None:
    """Give back what a tail reserved and nobody used; its last use."""
    with suppress(OSError):
        first, _ = tail.take(0)
        os.truncate(tail.segment.path, first * tail.segment.page_bytes)


def _remove(path: Path) -> None:
    with suppress(OSError):
        os.truncate(path, 0)  # frees the blocks even where a reader still has it open
    path.unlink(missing_ok=True)
