"""The host tier's memory: shared, page-first, one region a group, aligned for direct I/O.

A page of a group is one slot, and a slot is as many parts as the group has shards. A part is its heads' bytes of all
layers, then a trailer (see `engine/seal.py`), padded to whole blocks. So a part is one object for storage, nothing is
copied on the way there, and however many ranks a model lies on, the parts are the same:

    slot 0                    slot 1
    | part 0 | part 1 | ...   | part 0 | part 1 | ...
      ^ first   ^ first + apart ^ first + stride
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepwell.cache.host import demand, size
from stepwell.errors import ConfigError
from stepwell.types import GroupSpec, Ids, PageViews

TRAILER_BYTES = 64
BLOCK = 4096
"""What direct I/O and registration of memory want."""
SMALL_BLOCK = 512
"""The least that direct I/O can do, for pages so small that a whole block each would be waste."""
SHM = Path("/dev/shm")
PREFIX = "stepwell-arena-"
LINK_S = 600.0
"""More than a link is ever lent; one that leads nowhere may be of a container whose processes cannot be seen here."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where the pages of one group lie, as far as somebody sees them; all in bytes."""

    first: int
    """Offset of slot 0's first part."""
    stride: int
    """From slot to slot."""
    payload: int
    """Of a part, without its trailer."""
    parts: int
    """Of each slot."""
    apart: int
    """From part to part, which is also what storage keeps of one."""

    def share(self, rank: int, ranks: int) -> Region:
        """The parts of one of several ranks that hold different heads."""
        own = self.parts // ranks
        return replace(self, first=self.first + rank * own * self.apart, parts=own)


class Slotted:
    """Memory in which each group's slots lie in a region of their own; most of an ArenaView."""

    def __init__(self, memory: memoryview, address: int, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        self._memory, self._address = memory, address

    @property
    def address(self) -> int:
        return self._address

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    @property
    def memory(self) -> memoryview:
        return self._memory

    def slots(self, group: int) -> tuple[int, int, int]:
        region = self.regions[group]
        return region.first, region.stride, region.payload

    def parts(self, group: int) -> tuple[int, int]:
        region = self.regions[group]
        return region.parts, region.apart

    def views(self, group: int, ids: Ids) -> PageViews:
        """Whole parts, trailer and padding included: what storage keeps. All of a page's, then the next page's."""
        return PageViews.of(self._memory, self._address, self._starts(group, ids), self.regions[group].apart)

    def payloads(self, group: int, ids: Ids) -> list[memoryview]:
        """The pages' own bytes part by part, writable: what a runner copies."""
        payload = self.regions[group].payload
        return [self._memory[at : at + payload] for at in self._starts(group, ids)]

    def _starts(self, group: int, ids: Ids) -> list[int]:
        region = self.regions[group]
        slots = region.first + ids.astype(np.int64) * region.stride
        starts: list[int] = (slots[:, None] + np.arange(region.parts) * region.apart).reshape(-1).tolist()
        return starts


class Arena(Slotted):
    """Slots of host pages; implements ArenaView. Core owns it, workers pin it, storage reads and writes it."""

    def __init__(self, memory: mmap.mmap, fd: int, regions: Sequence[Region], name: str = "") -> None:
        self._mmap = memory
        self._fd = fd
        self._name = name
        self._by_name = bool(name)
        super().__init__(memoryview(memory), int(np.frombuffer(memory, dtype=np.uint8).ctypes.data), regions)

    @classmethod
    def create(
        cls,
        groups: Sequence[GroupSpec],
        page_size: int,
        pages: Sequence[int],
        *,
        setting: str = "cache.host_pages",
        named: bool = False,
    ) -> Arena:
        """Memory for `pages[g]` pages of each group. Raises ConfigError, naming `setting`, if there is too little.

        `named`: as a file in /dev/shm, for storage that reaches it only by that name; see `lending_name`.
        """
        regions, nbytes = plan(groups, page_size, pages)
        demand(nbytes, setting, f" for {sum(pages)} pages")
        name = ""
        if named:
            fd, name = _named(nbytes, setting)
        else:
            fd = _shared(nbytes, setting)
        try:
            memory = mmap.mmap(fd, nbytes) if fd >= 0 else mmap.mmap(-1, nbytes)
        except (OSError, ValueError) as error:
            _unlink(name)
            if fd >= 0:
                os.close(fd)
            raise ConfigError(f"the host tier's {size(nbytes)} cannot be mapped ({error}): lower {setting}") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a wish; not every kernel has huge pages for shared memory
                memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(memory, fd, regions, name)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def name(self) -> str:
        return self._name

    @contextmanager
    def lending_name(self) -> Iterator[None]:
        """While storage attaches: memory that was made with a name has it, and afterwards no more.

        So nothing is left behind in /dev/shm, however this process ends. The first time it is the file itself; later
        times, which a storage that is changed while the engine runs needs, it is a link to this process's descriptor,
        since a file that has lost its last name cannot get another.
        """
        if not self._by_name:
            yield
            return
        with ExitStack() as after:
            if not self._name:
                self._name = after.enter_context(lent_name(self._fd))
            try:
                yield
            finally:
                _unlink(self._name)
                self._name = ""

    def close(self) -> None:
        """Give the memory back. Where somebody still holds a view of it, it goes with the last one."""
        _unlink(self._name)
        self._name = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(BufferError):
            self._memory.release()
            self._mmap.close()


def plan(groups: Sequence[GroupSpec], page_size: int, pages: Sequence[int]) -> tuple[tuple[Region, ...], int]:
    """Where the slots of each group lie, and the bytes of all."""
    regions = []
    end = 0
    for group, count in zip(groups, pages, strict=True):
        payload = group.token_bytes * group.ranks * page_size // group.shards
        apart = slot_bytes(payload)
        regions.append(Region(end, apart * group.shards, payload, group.shards, apart))
        end += -(-apart * group.shards * count // BLOCK) * BLOCK
    return tuple(regions), max(end, BLOCK)


def seen_by(rank: int, groups: Sequence[GroupSpec], regions: Sequence[Region]) -> tuple[Region, ...]:
    """Of an arena that all ranks share, what one has: its own heads, or all where each rank holds the same."""
    return tuple(
        region.share(rank, group.ranks) if group.ranks > 1 else region
        for group, region in zip(groups, regions, strict=True)
    )


def slot_bytes(payload: int) -> int:
    """Size of a part of a slot that holds `payload` bytes."""
    whole = payload + TRAILER_BYTES
    block = BLOCK if whole >= BLOCK else SMALL_BLOCK
    return -(-whole // block) * block


def _shared(nbytes: int, setting: str) -> int:
    """A descriptor of so much shared memory; -1 where the system has none, so that private memory must do."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            fd = os.memfd_create("stepwell-arena", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
            return fd
    if not SHM.is_dir():
        return -1
    try:
        fd, name = tempfile.mkstemp(prefix=PREFIX, dir=SHM)
        os.unlink(name)  # noqa: PTH108 - nameless from here on, so that no crash leaves it behind
    except OSError as error:
        logging.getLogger("stepwell.arena").warning("no shared memory in %s (%s): private memory is used", SHM, error)
        return -1
    _reserve(fd, nbytes, setting)
    return fd


def _named(nbytes: int, setting: str) -> tuple[int, str]:
    """A descriptor and the name of so much shared memory. Raises ConfigError where there is none."""
    try:
        sweep()
        fd, name = _new_file()
    except OSError as error:
        raise ConfigError(
            f"storage needs the host tier as a file in {SHM}, and none can be made there ({error.strerror}): "
            f"mount a tmpfs of at least {size(nbytes)} at {SHM}"
        ) from None
    try:
        _reserve(fd, nbytes, setting)
    except ConfigError:
        _unlink(name)
        raise
    return fd, name


def _new_file() -> tuple[int, str]:
    """A file of this user alone, locked for as long as somebody has it open.

    That is how a sweep tells one that is left: process ids say nothing to other containers that share /dev/shm.
    """
    while True:
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        fd = os.open(SHM / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, name
        os.close(fd)  # somebody's sweep came between the two


def sweep() -> list[str]:
    """Remove the names of arenas whose processes are gone; which they were."""
    gone = []
    for path in SHM.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, another sweep's, or in use
            if path.is_symlink():
                if path.exists() or time.time() - path.lstat().st_mtime < LINK_S:
                    continue
                path.unlink()
            else:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            gone.append(path.name)
    return gone


@contextmanager
def lent_name(fd: int) -> Iterator[str]:
    """A name in /dev/shm that leads to a descriptor of this process, for as long as this lasts."""
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    (SHM / name).symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
    try:
        yield name
    finally:
        _unlink(name)


def _unlink(name: str) -> None:
    if name:
        with suppress(FileNotFoundError):
            (SHM / name).unlink()


def _reserve(fd: int, nbytes: int, setting: str) -> None:
    """Give a file its size; a full tmpfs would otherwise kill the process at first use."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        room = os.statvfs(SHM)
        raise ConfigError(
            f"the host tier needs {size(nbytes)} of shared memory and {SHM} has "
            f"{size(room.f_bavail * room.f_frsize)} ({error.strerror}): lower {setting} or enlarge {SHM}"
        ) from None
