"""A double of the C extension of USRBIO, as far as its source says how it behaves; no real 3FS is behind it.

A thread a ring carries requests out, in any order, against ordinary files and through the file in /dev/shm that the
memory's link names. `control` makes it slow, silent, wrong or dead.
"""

import errno
import mmap
import os
import random
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

MOUNTS = "HF3FS_DOUBLE_MOUNTS"
"""An environment variable: folders that are mounts from the start, for a process that a test cannot reach into."""


@dataclass
class Control:
    """How it behaves."""

    mounts: list[str] = field(default_factory=lambda: [one for one in os.environ.get(MOUNTS, "").split(":") if one])
    delay_s: float = 0.0
    held: threading.Event = field(default_factory=threading.Event)
    """While it is set, nothing is carried out."""
    dead: bool = False
    judge: Callable[[bool, int, int], int | None] | None = None
    """(is read, offset, length) to a result other than the right one."""
    refuse: Callable[[int], int] | None = None
    """Number of a request to the errno with which `prepare` refuses it, else 0."""
    rings: int = 0
    iovecs: int = 0
    carried: int = 0
    most_answers: int = 1 << 30
    prepared: int = 0


control = Control()
_registered: dict[int, int] = {}
_lock = threading.Lock()


def extract_mount_point(path: str) -> str | None:
    real = os.path.realpath(path)
    for mount in control.mounts:
        if real == mount or real.startswith(mount + "/"):
            return mount
    return None


def register_fd(fd: int, flags: int = 0) -> None:
    path = str(Path(f"/proc/self/fd/{fd}").readlink())
    if extract_mount_point(path) is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    with _lock:
        if fd in _registered:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        _registered[fd] = os.dup(fd)


def deregister_fd(fd: int) -> None:
    with _lock:
        twin = _registered.pop(fd, -1)
    if twin >= 0:
        os.close(twin)


def registered() -> int:
    return len(_registered)


def force_fsync(fd: int) -> int:
    os.fsync(fd)
    return 0


def hardlink(target: str, link_name: str) -> None:
    os.link(target, link_name)


def punch_hole(*_: object) -> None:
    raise NotImplementedError


class iovec:
    def __init__(self, base: memoryview, id: str, mount: str, block_size: int = 0, numa: int = -1) -> None:
        link = Path(mount) / "3fs-virt" / "iovs" / (id + (f".b{block_size}" if block_size else ""))
        target = link.readlink()
        if target.parent != Path("/dev/shm") or not stat.S_ISREG(target.lstat().st_mode):
            raise OSError(errno.EINVAL, f"{target} is no file in /dev/shm")
        fd = os.open(target, os.O_RDWR | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size
            if size < memoryview(base).nbytes:
                raise OSError(errno.EINVAL, "the file is smaller than the memory")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.seen = memoryview(self._map)
        self.base_off, self.size = 0, memoryview(base).nbytes
        self.result, self.userdata = 0, None
        control.iovecs += 1

    def __getitem__(self, part: slice) -> "iovec":
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError("step not 1 when slicing iovec")
        one = object.__new__(iovec)
        one.seen, one.base_off, one.size = self.seen, self.base_off + start, max(0, stop - start)
        one.result, one.userdata = 0, None
        return one


class ioring:
    def __init__(
        self,
        mount: str,
        entries: int,
        for_read: bool = True,
        io_depth: int = 0,
        priority: int | None = None,
        timeout: int | None = None,
        numa: int = -1,
        flags: int = 0,
    ) -> None:
        if mount not in control.mounts or control.dead:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.entries, self._for_read = entries, for_read
        self._user = threading.Lock()  # a ring is not thread-safe: two users at once are found out
        self._queues = _Queues(for_read)
        self._taken = 0
        control.rings += 1
        threading.Thread(target=self._queues.serve, daemon=True).start()

    @staticmethod
    def size_for_entries(entries: int) -> int:
        return 64 * entries

    def prepare(self, iov: iovec, read: bool, fd: int, off: int, userdata: object = None) -> "ioring":
        with self._alone():
            control.prepared += 1
            code = control.refuse(control.prepared) if control.refuse else 0
            if read != self._for_read or iov.size == 0:
                code = errno.EINVAL
            elif fd not in _registered:
                code = errno.EBADF
            elif self._taken == self.entries:
                code = errno.EAGAIN
            if code:
                raise OSError(code, os.strerror(code))
            self._taken += 1
            self._queues.ask(iov, _registered[fd], off, userdata)  # it may begin before `submit`
            return self

    def submit(self) -> "ioring":
        with self._alone():
            return self

    def wait(self, *, max_results: int = 0, min_results: int = 0, timeout: timedelta | None = None) -> list[iovec]:
        with self._alone():
            most = min(max(max_results, min_results, 1), control.most_answers)
            ends = None if timeout is None else time.monotonic() + timeout.total_seconds()
            answers = self._queues.take(most, min(min_results, most), ends)
            self._taken -= len(answers)
            return answers

    def __del__(self) -> None:
        if hasattr(self, "_queues"):
            self._queues.over = True

    def _alone(self) -> "_Alone":
        return _Alone(self._user)


class _Queues:
    """What the thread of a ring shares with it."""

    def __init__(self, for_read: bool) -> None:
        self._for_read = for_read
        self._changed = threading.Condition()
        self._asked: list[tuple[iovec, int, int, object]] = []
        self._answers: deque[iovec] = deque()
        self.over = False

    def ask(self, iov: iovec, fd: int, off: int, userdata: object) -> None:
        with self._changed:
            self._asked.append((iov, fd, off, userdata))
            self._changed.notify_all()

    def take(self, most: int, least: int, ends: float | None) -> list[iovec]:
        with self._changed:
            while len(self._answers) < least:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return [self._answers.popleft() for _ in range(min(most, len(self._answers)))]

    def serve(self) -> None:
        dice = random.Random(1)
        while not self.over:
            with self._changed:
                if not self._asked or control.held.is_set() or control.dead:
                    self._changed.wait(0.02)
                    continue
                iov, fd, off, userdata = self._asked.pop(dice.randrange(len(self._asked)))
            time.sleep(control.delay_s)
            while control.held.is_set() and not control.dead:
                time.sleep(0.002)
            if control.dead:
                continue
            iov.result = _carry(iov, self._for_read, fd, off)
            iov.userdata = userdata
            with self._changed:
                control.carried += 1
                self._answers.append(iov)
                self._changed.notify_all()


class _Alone:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("two threads use one ring")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _carry(iov: iovec, read: bool, fd: int, off: int) -> int:
    other = control.judge(read, off, iov.size) if control.judge else None
    if other is not None:
        return other
    part = iov.seen[iov.base_off : iov.base_off + iov.size]
    try:
        return os.preadv(fd, [part], off) if read else os.pwritev(fd, [part], off)
    except OSError as error:
        return -(error.errno or errno.EIO)
