"""USRBIO alone, or plain system calls where there is none: pages one after another in one file."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

from stepwell import ArenaView, Context, PageKey, PageViews
from stepwell_threefs.config import ThreefsConfig
from stepwell_threefs.folder import Folder
from stepwell_threefs.posix import CALL_PAGES
from stepwell_threefs.segment import BLOCK
from stepwell_threefs.usrbio import Iovec, Named, Ring, UsrbioMover, usrbio_of

PATIENCE = timedelta(seconds=60)


class ThreefsNative:
    """Which of the two, as the storage would choose."""

    def __init__(self, config: ThreefsConfig, context: Context, arena: ArenaView) -> None:
        self._folder = Folder(config)
        self._file = self._folder.path / f"native-{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._offsets: dict[PageKey, int] = {}
        self._end = 0
        mover = usrbio_of(config, context) if arena.name else None
        self._fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._rings = _Rings(mover, config.entries, arena, self._fd) if mover else None
        self._calls = None if self._rings else _Calls(self._file, self._folder.direct, config.threads)

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        size = int(pages.sizes[0])
        with self._lock:
            start = -(-self._end // BLOCK) * BLOCK
            self._end = start + len(keys) * size
            os.ftruncate(self._fd, self._end)
        offsets = [start + nth * size for nth in range(len(keys))]
        self._offsets.update(zip(keys, offsets, strict=True))
        self._move(pages, offsets, write=True)

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        self._move(into, [self._offsets[key] for key in keys], write=False)

    def close(self) -> None:
        if self._rings is not None:
            self._rings.close()
        if self._calls is not None:
            self._calls.close()
        os.close(self._fd)
        self._file.unlink(missing_ok=True)

    def _move(self, pages: PageViews, offsets: Sequence[int], *, write: bool) -> None:
        if self._rings is not None:
            self._rings.move(pages, offsets, write)
        if self._calls is not None:
            self._calls.move(pages, offsets, write)


class _Rings:
    def __init__(self, mover: UsrbioMover, entries: int, arena: ArenaView, fd: int) -> None:
        self._io, self._mount = mover.library
        mover.close()
        self._iov: Iovec = self._io.make_iovec(Named(arena.name, arena.memory), self._mount)
        self._start, self._fd, self._entries = arena.address, fd, entries
        self._free: dict[bool, list[Ring]] = {False: [], True: []}
        self._io.register_fd(fd)

    def move(self, pages: PageViews, offsets: Sequence[int], write: bool) -> None:
        size = int(pages.sizes[0])
        iov, fd = self._iov, self._fd
        starts = (pages.addresses[:, 0] - self._start).tolist()
        with self._ring(write) as ring:
            for first in range(0, len(starts), self._entries):
                part = slice(first, first + self._entries)
                for at, offset in zip(starts[part], offsets[part], strict=True):
                    ring.prepare(iov[at : at + size], not write, fd, offset)
                ring.submit()
                wanted = len(starts[part])
                answers = ring.wait(max_results=wanted, min_results=wanted, timeout=PATIENCE)
                if [answer.result for answer in answers] != [size] * wanted:
                    raise OSError("not all pages were moved")

    def close(self) -> None:
        self._free = {False: [], True: []}
        self._io.deregister_fd(self._fd)
        del self._iov

    @contextmanager
    def _ring(self, write: bool) -> Iterator[Ring]:
        free = self._free[write]
        ring = free.pop() if free else self._io.make_ioring(self._mount, self._entries, not write)
        yield ring
        free.append(ring)


class _Calls:
    def __init__(self, file: os.PathLike[str], direct: bool, threads: int) -> None:
        self._fds = [os.open(file, os.O_RDWR | os.O_CLOEXEC)]
        if direct:
            self._fds.append(os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT))
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def move(self, pages: PageViews, offsets: Sequence[int], write: bool) -> None:
        size = int(pages.sizes[0])
        aligned = size % BLOCK == 0 and not (pages.addresses % BLOCK).any()
        fd = self._fds[-1 if aligned else 0]
        buffers = pages.buffers()
        call = os.pwritev if write else os.preadv
        most = max(1, min(CALL_PAGES, (4 << 20) // size, -(-len(offsets) // self._threads)))
        runs: list[list[int]] = []
        for at in sorted(range(len(offsets)), key=offsets.__getitem__):
            if runs and len(runs[-1]) < most and offsets[runs[-1][-1]] + size == offsets[at]:
                runs[-1].append(at)
            else:
                runs.append([at])

        def carry(run: list[int]) -> None:
            if call(fd, [buffers[at] for at in run], offsets[run[0]]) != size * len(run):
                raise OSError("not all pages were moved")

        for _ in self._pool.map(carry, runs):
            pass

    def close(self) -> None:
        self._pool.shutdown()
        for fd in self._fds:
            os.close(fd)
