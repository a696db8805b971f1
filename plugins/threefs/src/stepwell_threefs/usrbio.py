"""Pages through USRBIO: rings of requests to the 3FS client, which moves bytes between the network and shared memory.

The memory is the host tier itself where that has a name in /dev/shm, else memory of our own through which pages are
copied. A request that was prepared may be carried out at any time from then on, whatever happens here. So a call
returns only when each of its requests has answered, or when the client that would carry it out is known to be dead.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol

from stepwell import ArenaView, ConfigError, Context, PageViews
from stepwell_threefs.config import ThreefsConfig
from stepwell_threefs.moves import Place

SLICE = timedelta(seconds=1)
"""One wait for answers; after each that brings none, whether the client still lives."""
WARN_S = 10.0
HOLES_FAIL = 2
DEAD = (errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED, errno.ENOENT)
SHM = Path("/dev/shm")


class Iovec(Protocol):
    """Shared memory that the client knows, or a part of it."""

    result: int
    userdata: int

    def __getitem__(self, part: slice) -> Iovec: ...


class Ring(Protocol):
    """Requests of one kind."""

    def prepare(self, iov: Iovec, read: bool, fd: int, off: int, userdata: object = None) -> object: ...
    def submit(self) -> object: ...
    def wait(self, *, max_results: int, min_results: int, timeout: timedelta) -> list[Iovec]: ...


class Named(NamedTuple):
    """What the library takes for shared memory."""

    name: str
    buf: memoryview


class Lost(Exception):
    """The 3FS client is dead, and nothing that was asked of it will be carried out."""


class Request(NamedTuple):
    """One transfer between memory and a file."""

    iov: Iovec
    fd: int
    offset: int
    size: int
    at: int
    """Index of its page in the batch."""


class Staging:
    """Memory through which pages are copied."""

    def __init__(self, io: ModuleType, mount: str, nbytes: int) -> None:
        self._shm = SharedMemory(create=True, size=nbytes)
        try:
            self.iov: Iovec = io.make_iovec(self._shm, mount)
        finally:
            self._shm.unlink()
        assert self._shm.buf is not None
        self.memory = self._shm.buf

    def close(self) -> None:
        """Give it back."""
        del self.iov, self.memory
        self._shm.close()


class UsrbioMover:
    """Rings and memory; each call has a ring to itself while it lasts, since they are not thread-safe."""

    def __init__(self, io: ModuleType, mount: str, config: ThreefsConfig, log: logging.Logger) -> None:
        self._io, self._mount, self._log = io, mount, log
        self._entries, self._staging_bytes = config.entries, config.staging_mib << 20
        self._lock = threading.Lock()
        self._rings: dict[bool, list[Ring]] = {False: [], True: []}
        self._stagings: list[Staging] = []
        self._lent: tuple[Iovec, int, int] | None = None
        self._age = 0
        """Raised when a client has died: what belongs to an older age is of no use any more."""
        with self._ring(write=False):
            pass  # a mount that does not take rings is found out now

    def attach(self, arena: ArenaView) -> None:
        if not arena.name or (SHM / arena.name).is_symlink():  # the client follows no links there
            self._log.info("the host tier has no name in %s: pages are copied on their way", SHM)
            return
        try:
            iov = self._io.make_iovec(Named(arena.name, arena.memory), self._mount)
        except OSError as error:
            self._log.warning("3FS does not take the host tier (%s): pages are copied on their way", error)
            return
        self._lent = (iov, arena.address, arena.nbytes)

    @property
    def library(self) -> tuple[ModuleType, str]:
        """The library's module, and the mount that it speaks to."""
        return self._io, self._mount

    def move(
        self, places: Sequence[Place], pages: PageViews, moved: Callable[[int], None], *, write: bool
    ) -> dict[int, str]:
        size = int(pages.sizes.sum())
        failed: dict[int, str] = {}
        fds: dict[int, int] = {}
        handles = []  # they stay open until the end of the call
        for segment in {place.segment.number: place.segment for place in places}.values():
            try:
                handle = segment.open(os.O_RDWR if write else os.O_RDONLY)
                fds[segment.number] = handle.enrol(self._io.register_fd, self._io.deregister_fd)
                handles.append(handle)
            except OSError as error:
                lost = [place.at for place in places if place.segment is segment]
                failed.update((at, f"{segment.stem}: {error.strerror or error}") for at in lost)
        wanted = [place for place in places if place.segment.number in fds]
        carry = self._straight(pages, size, moved) or self._copied(pages, size, moved)
        age = self._age
        try:
            carry(wanted, fds, failed, write)
        except Lost:
            self._forget(age, places)
            failed.update((place.at, "the 3FS client of this node is gone") for place in wanted)
        except OSError as error:
            failed.update((place.at, f"USRBIO: {error.strerror or error}") for place in wanted)
        return failed

    def close(self) -> None:
        with self._lock:
            for rings in self._rings.values():
                rings.clear()
            for staging in self._stagings:
                staging.close()
            self._stagings.clear()
            self._lent = None

    # --- memory --------------------------------------------------------------------------------------------------

    def _straight(self, pages: PageViews, size: int, moved: Callable[[int], None]) -> Carry | None:
        """Between the files and the arena, where all pages lie in it."""
        if self._lent is None:
            return None
        iov, start, nbytes = self._lent
        offsets = (pages.addresses[:, 0] - start).tolist()
        if min(offsets) < 0 or max(offsets) + size > nbytes:
            return None

        def carry(places: Sequence[Place], fds: dict[int, int], failed: dict[int, str], write: bool) -> None:
            requests = [
                Request(iov[offsets[at] : offsets[at] + size], fds[segment.number], offset, size, at)
                for segment, offset, at in places
            ]
            with self._ring(write) as ring:
                failed.update(self._carried(ring, requests, moved, write))

        return carry

    def _copied(self, pages: PageViews, size: int, moved: Callable[[int], None]) -> Carry:
        """The same through memory of our own, as many pages at a time as that holds."""
        buffers = pages.buffers()
        step = self._staging_bytes // size

        def carry(places: Sequence[Place], fds: dict[int, int], failed: dict[int, str], write: bool) -> None:
            if step == 0:
                failed.update((place.at, f"{size} bytes are more than storage.staging_mib") for place in places)
                return
            with self._staging() as staging, self._ring(write) as ring:
                for first in range(0, len(places), step):
                    part = places[first : first + step]
                    spots = [slice(nth * size, nth * size + size) for nth in range(len(part))]
                    if write:
                        for place, spot in zip(part, spots, strict=True):
                            staging.memory[spot] = buffers[place.at]
                    requests = [
                        Request(staging.iov[spot], fds[segment.number], offset, size, at)
                        for (segment, offset, at), spot in zip(part, spots, strict=True)
                    ]
                    spot_of = {place.at: spot for place, spot in zip(part, spots, strict=True)}

                    def arrived(at: int, staging: Staging = staging, spot_of: dict[int, slice] = spot_of) -> None:
                        if not write:
                            buffers[at][:] = staging.memory[spot_of[at]]
                        moved(at)

                    failed.update(self._carried(ring, requests, arrived, write))

        return carry

    # --- rings ---------------------------------------------------------------------------------------------------

    def _carried(
        self, ring: Ring, requests: Sequence[Request], moved: Callable[[int], None], write: bool
    ) -> dict[int, str]:
        """Have all requests carried out; what failed. Answers come in any order, and late ones with later waits."""
        failed: dict[int, str] = {}
        under_way: dict[int, Request] = {}
        left = iter(enumerate(requests))
        waiting = next(left, None)
        began = time.monotonic()
        warned = False
        while waiting is not None or under_way:
            fresh = False
            while waiting is not None:
                nth, request = waiting
                try:
                    ring.prepare(request.iov, not write, request.fd, request.offset, userdata=nth)
                    under_way[nth] = request
                    fresh = True
                except Exception as error:  # whatever it is, those before it are under way
                    if getattr(error, "errno", 0) == errno.EAGAIN and under_way:
                        break  # full until answers are taken
                    failed[request.at] = f"USRBIO: {getattr(error, 'strerror', None) or error}"
                waiting = next(left, None)
            answers = self._answers(ring, len(under_way), fresh) if under_way else []
            good = []
            for answer in answers:
                request = under_way.pop(answer.userdata)
                if answer.result == request.size:
                    good.append(request.at)
                else:
                    failed[request.at] = _why(answer.result)
            for at in good:
                moved(at)
            if under_way and not answers:
                self._check_alive()
                if not warned and time.monotonic() - began > WARN_S:
                    warned = True
                    self._log.warning("3FS has not answered %d requests for %.0f s", len(under_way), WARN_S)
        return failed

    def _answers(self, ring: Ring, most: int, fresh: bool) -> list[Iovec]:
        """What has answered within a while. An error of the ring is no reason to leave before the others answer."""
        try:
            if fresh:
                ring.submit()
            return ring.wait(max_results=most, min_results=1, timeout=SLICE)
        except Exception as error:
            self._log.warning("USRBIO: %s", error)
            time.sleep(SLICE.total_seconds() / 10)
            return []

    def _check_alive(self) -> None:
        """Raise Lost where the client's mount is gone, and its memory with it."""
        try:
            os.stat(f"{self._mount}/3fs-virt")  # noqa: PTH116 - what counts is the system call
        except OSError as error:
            if error.errno in DEAD:
                raise Lost from error

    def _forget(self, age: int, places: Sequence[Place]) -> None:
        """Let go of all that the dead client knew; what is made from now on is another's."""
        with self._lock:
            for segment in {place.segment.number: place.segment for place in places}.values():
                segment.close()
            if age != self._age:
                return
            self._age += 1
            self._rings = {False: [], True: []}
            self._stagings = []
            self._lent = None
        self._log.warning("the 3FS client of this node is gone; when it is back, pages are copied on their way")

    @contextmanager
    def _ring(self, write: bool) -> Iterator[Ring]:
        """A ring that nobody else uses meanwhile. One that was left in the middle is not used again."""
        with self._lock:
            age = self._age
            ring = self._rings[write].pop() if self._rings[write] else None
        if ring is None:
            flags = 0 if write else HOLES_FAIL
            ring = self._io.make_ioring(self._mount, self._entries, not write, flags=flags)
        yield ring
        with self._lock:
            if age == self._age:
                self._rings[write].append(ring)

    @contextmanager
    def _staging(self) -> Iterator[Staging]:
        with self._lock:
            age = self._age
            staging = self._stagings.pop() if self._stagings else None
        if staging is None:
            staging = Staging(self._io, self._mount, self._staging_bytes)
        yield staging
        with self._lock:
            if age == self._age:
                self._stagings.append(staging)


Carry = Callable[[Sequence[Place], dict[int, int], dict[int, str], bool], None]


def usrbio_of(config: ThreefsConfig, context: Context) -> UsrbioMover | None:
    """USRBIO where it can be had and is wanted. Raises ConfigError where it is insisted on and cannot be had."""
    if config.usrbio is False:
        return None
    insisted = config.usrbio is True
    try:
        import hf3fs_fuse.io as io  # type: ignore[import-not-found]
    except ImportError as error:
        if insisted:
            raise ConfigError(
                f"storage.usrbio: its library cannot be imported ({error}); build hf3fs_py_usrbio from the 3FS tree, or"
                " leave this setting out"
            ) from None
        return None
    mount = io.extract_mount_point(str(config.path.resolve()))
    if mount is None:
        if insisted:
            raise ConfigError(f"storage.path: {config.path} is not on 3FS; name a folder on its mount")
        return None
    try:
        return UsrbioMover(io, mount, config, context.log)
    except OSError as error:
        if insisted:
            raise ConfigError(
                f"storage.usrbio: the 3FS client at {mount} takes no ring ({error}); see whether it runs, or leave this"
                " setting out"
            ) from None
        context.log.warning("USRBIO at %s cannot be used (%s): system calls are", mount, error)
        return None


def _why(result: int) -> str:
    if result >= 0:
        return f"USRBIO moved {result} bytes of the page"
    code = -result
    return f"USRBIO: {os.strerror(code)}" if code in errno.errorcode else f"USRBIO: 3FS code {code}"
