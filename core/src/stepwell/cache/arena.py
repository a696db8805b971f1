"""The host tier's memory: shared, page-first, one region a group, aligned for direct I/O.

A page of a group is one slot: its bytes of all layers, then a trailer (see `engine/seal.py`), padded to whole blocks.
So a page is one object for storage, and nothing is copied on the way there.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from stepwell.errors import ConfigError
from stepwell.types import GroupSpec, Ids, PageViews

TRAILER_BYTES = 64
BLOCK = 4096
"""What direct I/O and registration of memory want."""
SMALL_BLOCK = 512
"""The least that direct I/O can do, for pages so small that a whole block each would be waste."""
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


class Arena:
    """Slots of host pages; implements ArenaView. Core owns it, workers pin it, storage reads and writes it."""

    def __init__(self, memory: mmap.mmap, fd: int, slots: Sequence[tuple[int, int, int]]) -> None:
        self._mmap = memory
        self._fd = fd
        self._slots = tuple(slots)
        self._memory = memoryview(memory)
        self._address = int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)

    @classmethod
    def create(
        cls, groups: Sequence[GroupSpec], page_size: int, pages: Sequence[int], *, setting: str = "cache.host_pages"
    ) -> Arena:
        """Memory for `pages[g]` pages of each group. Raises ConfigError, naming `setting`, if there is too little."""
        slots, nbytes = plan(groups, page_size, pages)
        free = available()
        if free is not None and nbytes > free:
            raise ConfigError(
                f"the host tier needs {_size(nbytes)} for {sum(pages)} pages and {_size(free)} of memory are free: "
                f"lower {setting}"
            )
        fd = _shared(nbytes, setting)
        try:
            memory = mmap.mmap(fd, nbytes) if fd >= 0 else mmap.mmap(-1, nbytes)
        except (OSError, ValueError) as error:
            if fd >= 0:
                os.close(fd)
            raise ConfigError(f"the host tier's {_size(nbytes)} cannot be mapped ({error}): lower {setting}") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a wish; not every kernel has huge pages for shared memory
                memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(memory, fd, slots)

    @property
    def address(self) -> int:
        return self._address

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def name(self) -> str:
        return ""

    @property
    def memory(self) -> memoryview:
        return self._memory

    def slots(self, group: int) -> tuple[int, int, int]:
        return self._slots[group]

    def views(self, group: int, ids: Ids) -> PageViews:
        """Whole slots, trailer and padding included: what storage keeps."""
        stride = self._slots[group][1]
        return PageViews.of(self._memory, self._address, self._starts(group, ids), stride)

    def payloads(self, group: int, ids: Ids) -> list[memoryview]:
        """The pages' own bytes, writable: what a runner copies."""
        payload = self._slots[group][2]
        return [self._memory[at : at + payload] for at in self._starts(group, ids)]

    def _starts(self, group: int, ids: Ids) -> list[int]:
        first, stride, _ = self._slots[group]
        starts: list[int] = (first + ids.astype(np.int64) * stride).tolist()
        return starts

    def close(self) -> None:
        """Give the memory back. Where somebody still holds a view of it, it goes with the last one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(BufferError):
            self._memory.release()
            self._mmap.close()


def plan(
    groups: Sequence[GroupSpec], page_size: int, pages: Sequence[int]
) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """Where slots lie: (offset of slot 0, stride, payload) a group, and the bytes of all."""
    slots = []
    end = 0
    for group, count in zip(groups, pages, strict=True):
        payload = group.token_bytes * page_size
        stride = slot_bytes(payload)
        slots.append((end, stride, payload))
        end += -(-stride * count // BLOCK) * BLOCK
    return tuple(slots), max(end, BLOCK)


def slot_bytes(payload: int) -> int:
    """Size of the slot of a page of `payload` bytes."""
    whole = payload + TRAILER_BYTES
    block = BLOCK if whole >= BLOCK else SMALL_BLOCK
    return -(-whole // block) * block


def available() -> int | None:
    """Bytes of memory that this process could still take; None where the system does not say."""
    free = None
    with suppress(OSError, StopIteration, ValueError):
        line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # a container's limit; "max" is none
        left = int((CGROUP / "memory.max").read_text()) - int((CGROUP / "memory.current").read_text())
        free = left if free is None else min(free, max(left, 0))
    return free


def _shared(nbytes: int, setting: str) -> int:
    """A descriptor of so much shared memory; -1 where the system has none, so that private memory must do."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            fd = os.memfd_create("stepwell-arena", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
            return fd
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return -1
    try:
        fd, name = tempfile.mkstemp(prefix="stepwell-arena-", dir=folder)
        os.unlink(name)  # noqa: PTH108 - nameless from here on, so that no crash leaves it behind
    except OSError as error:
        logging.getLogger("stepwell.arena").warning(
            "no shared memory in %s (%s): private memory is used", folder, error
        )
        return -1
    try:
        os.posix_fallocate(fd, 0, nbytes)  # a full tmpfs would otherwise kill the process at first use
    except OSError as error:
        os.close(fd)
        room = os.statvfs(folder)
        raise ConfigError(
            f"the host tier needs {_size(nbytes)} of shared memory and {folder} has "
            f"{_size(room.f_bavail * room.f_frsize)} ({error.strerror}): lower {setting} or enlarge {folder}"
        ) from None
    return fd


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
