"""Room for new pages: which segment takes them, and which leaves when the folder is full.

Segments leave whole and oldest first, so writing is sequential, nothing that a reader may hold is moved, and there is
no bookkeeping of holes. Pages that were of use get a second chance: they are copied to the newest segment before
theirs leaves. On a chat trace (12,031 conversations, room for a tenth of the pages) first-in-first-out alone found
26.0% of the pages, with the second chance 29.5%, and a full LRU 29.6%, for one page copied for every four or five
written.

The data file of a segment that left stays as a spare, because writing over blocks that are in use already is 1.6 to
1.9 times as fast on ext4 as writing to fresh ones.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from contextlib import suppress

from stepwell_file.catalog import Catalog
from stepwell_file.config import FileConfig
from stepwell_file.disk import Disk
from stepwell_file.folder import Folder, Sizes
from stepwell_file.segment import BLOCK, HEADER, Segment, Tail, claim, ours, write_header

GIB = 1 << 30
ADOPT_SHARE = 8
"""A segment with less than this part of it free is not worth continuing."""


class NoRoom(OSError):
    """There is no room and nothing may leave."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.ENOSPC, why)


class Space:
    """Gives out segments within the limit. One thread at a time asks; processes are kept apart by the folder's lock."""

    def __init__(self, config: FileConfig, folder: Folder, catalog: Catalog, disk: Disk) -> None:
        self._folder = folder
        self._catalog = catalog
        self._disk = disk
        room = os.statvfs(folder.path)
        whole = room.f_blocks * room.f_frsize
        self.limit = int(min(config.gib * GIB, whole))
        self._min_free = int(min(config.min_free_gib * GIB, whole / 20))
        wanted = min(max(config.segment_mib * (1 << 20), self.limit / 256), self.limit / 16)
        self.segment_bytes = max(BLOCK, int(wanted) // BLOCK * BLOCK) + HEADER
        self._durable = config.durable
        self.evicted = 0
        """Segments that left for want of room."""

    def acquire(self, need: int) -> Tail:
        """A segment with room for `need` bytes that nobody else writes to. OSError where there can be none."""
        with self._folder.changing():
            self._catalog.follow()
            files = {n: s for n, s in self._folder.scan().items() if s.data is not None and self._ours(n)}
            total = sum(sizes.data or 0 for sizes in files.values())
            least = HEADER + -(-need // BLOCK) * BLOCK
            most = min(self.limit, total + self._free() - self._min_free)
            if least > most:  # in vain: let nothing leave for it
                raise NoRoom(f"{least} bytes are needed, and {max(most, 0)} is the most that can be had")
            size = min(max(self.segment_bytes, least), most // BLOCK * BLOCK)
            return self._adopt(files, need, size) or self._create(files, least, size)

    def crowded(self) -> Segment | None:
        """The segment to retire so that the next one has room; None where there is room or a spare."""
        files = {n: s for n, s in self._folder.scan().items() if s.data is not None and self._ours(n)}
        if any(sizes.index is None for sizes in files.values()):
            return None
        total = sum(sizes.data or 0 for sizes in files.values())
        if total + self.segment_bytes <= self.limit and self._free() >= self._min_free + self.segment_bytes:
            return None
        return self._catalog.segment(next(iter(files))) if len(files) > 1 else None

    def retire(self, segment: Segment) -> None:
        """Make a spare of a segment whose lock the caller holds."""
        with self._folder.changing():
            self._catalog.drop(segment)
            segment.index.unlink(missing_ok=True)

    def sweep(self, segments: Iterable[Segment]) -> None:
        """Remove those of the segments that hold no page any more and have no writer."""
        empty = [segment for segment in segments if segment.live == 0]
        if not empty:
            return
        with self._folder.changing():
            self._catalog.follow()
            for segment in empty:
                if segment.live == 0:
                    self._remove(segment)

    # --- under the folder's lock ---------------------------------------------------------------------------------

    def _adopt(self, files: dict[int, Sizes], need: int, size: int) -> Tail | None:
        """Continue the newest segment that has room and no living writer."""
        total = sum(sizes.data or 0 for sizes in files.values())
        for number, sizes in reversed(files.items()):
            segment = self._catalog.segment(number)
            end = max(size, sizes.data or 0)
            growth = end - (sizes.data or 0)
            if segment is None or segment.sealed or sizes.index is None or total + growth > self.limit:
                continue
            if end - segment.used < max(need + BLOCK, size // ADOPT_SHARE) or growth > self._free() - self._min_free:
                continue
            lock = claim(segment.index)
            if lock is None:
                continue
            tail = None
            try:
                self._catalog.follow_one(segment)
                if end - segment.used >= need + BLOCK:
                    self._disk.allocate(segment.fds(False)[0], end)
                    tail = Tail(segment, lock, end, self._disk)
                    return tail
            except OSError:  # its data is damaged or the disk is full: another segment may do
                continue
            finally:
                if tail is None:
                    os.close(lock)
        return None

    def _create(self, files: dict[int, Sizes], least: int, size: int) -> Tail:
        """Begin a segment, in a spare if there is one."""
        number = max([*files, time.time_ns()]) + 1  # grows across restarts too: no number comes twice
        segment = Segment(self._folder.path, number)
        spare = next((n for n, s in files.items() if s.index is None and (s.data or 0) >= least), None)
        if spare is not None and sum(sizes.data or 0 for sizes in files.values()) <= self.limit:
            size = files[spare].data or 0
            Segment(self._folder.path, spare).data.rename(segment.data)
        else:
            size = self._make_room(files, least, size)
        fd = os.open(segment.data, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._disk.allocate(fd, size)
            write_header(fd, number)
            segment.index.touch(exist_ok=False)
            if self._durable:
                self._folder.sync()
        except OSError:
            segment.data.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        lock = claim(segment.index)
        if lock is None:
            raise NoRoom("the new segment is locked by another process")
        self._catalog.follow_one(segment)
        return Tail(segment, lock, size, self._disk)

    def _make_room(self, files: dict[int, Sizes], least: int, size: int) -> int:
        """Let segments leave until one of `size` fits; less than that only where no more can leave."""
        while True:
            total = sum(sizes.data or 0 for sizes in files.values())
            room = min(self.limit - total, self._free() - self._min_free)
            if room >= size:
                return size
            gone = next((number for number, sizes in files.items() if self._evict(number, sizes)), None)
            if gone is not None:
                del files[gone]
                continue
            if room >= least:
                return room // BLOCK * BLOCK
            raise NoRoom(
                f"no room for {least} bytes: {total} of {self.limit} are in use by writers, "
                f"{self._free()} are free and {self._min_free} are left to others"
            )

    def _evict(self, number: int, sizes: Sizes) -> bool:
        """Remove a segment or a spare; whether it went."""
        segment = self._catalog.segment(number) or Segment(self._folder.path, number)
        if sizes.index is None:
            _unlink(segment)
            return True
        gone = self._remove(segment)
        self.evicted += gone
        return gone

    def _remove(self, segment: Segment) -> bool:
        """Remove a segment unless somebody writes to it; whether it went."""
        lock = claim(segment.index)
        if lock is None and segment.there:
            return False
        _unlink(segment)
        if lock is not None:
            os.close(lock)
        self._catalog.drop(segment)
        return True

    def _ours(self, number: int) -> bool:
        return self._catalog.segment(number) is not None or ours(Segment(self._folder.path, number).data)

    def _free(self) -> int:
        room = os.statvfs(self._folder.path)
        return room.f_bavail * room.f_frsize


def _unlink(segment: Segment) -> None:
    segment.index.unlink(missing_ok=True)
    with suppress(OSError):
        os.truncate(segment.data, 0)  # frees the blocks even where a reader still has it open
    segment.data.unlink(missing_ok=True)
