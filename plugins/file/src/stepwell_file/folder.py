"""The folder: opened or refused with one sentence, listed, and locked for changes of its structure."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from stepwell import ConfigError
from stepwell_file.config import FileConfig
from stepwell_file.record import VERSION
from stepwell_file.segment import named

FORMAT = "stepwell-file.format"
LOCK = "stepwell-file.lock"
PATIENCE_S = 5.0
"""How long a change waits for those of other processes, which take milliseconds."""
MTIME_GRAIN_NS = 100_000_000
"""More than a filesystem's clock may lag: changes so close together may carry one time."""
_STAMP = f"stepwell file storage {VERSION}\n"


@dataclass(slots=True)
class Sizes:
    """Files of one segment number as they lie in the folder; None where one is not there."""

    data: int | None = None
    index: int | None = None


class Folder:
    """The names in the folder that are ours."""

    def __init__(self, config: FileConfig) -> None:
        self.path = config.path
        self._changed = self._looked = 0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._settle_format()
            os.close(self._open_lock())
            self.scan()
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"storage.path = {str(self.path)!r} is not a folder: name another") from None
        except OSError as error:
            raise ConfigError(
                f"storage.path = {str(self.path)!r} cannot be used ({error.strerror or error}): {_remedy(error)}"
            ) from None
        self.direct = self._can_direct(config)

    def listed(self) -> set[int] | None:
        """Numbers of the segments that lie here; None where nothing came or went since the last time."""
        now = time.time_ns()
        changed = self.path.stat().st_mtime_ns
        if changed == self._changed and changed < self._looked - MTIME_GRAIN_NS:
            return None
        self._changed, self._looked = changed, now
        names = [name for name in map(named, os.listdir(self.path)) if name]  # noqa: PTH208 - called for each miss
        return {number for number, kind in names if kind == "index"} & {n for n, kind in names if kind == "data"}

    def scan(self) -> dict[int, Sizes]:
        """What lies here, oldest first."""
        found: dict[int, Sizes] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = named(entry.name)
                if name is None:
                    continue
                with suppress(FileNotFoundError):
                    setattr(found.setdefault(name[0], Sizes()), name[1], entry.stat().st_size)
        return dict(sorted(found.items()))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Alone, among all processes, in adding and removing files. OSError where another does not let go in time."""
        fd = self._open_lock()
        try:
            _lock(fd, time.monotonic() + PATIENCE_S)
            yield
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Bring names to the device."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        return os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)

    def _settle_format(self) -> None:
        """Check the folder's stamp; the first process writes it, whole or not at all."""
        stamp = self.path / FORMAT
        if not stamp.exists():
            part = self.path / f"{FORMAT}.{os.getpid()}"
            try:
                part.write_text(_STAMP)
                with suppress(FileExistsError):
                    os.link(part, stamp)
            finally:
                part.unlink(missing_ok=True)
        found = stamp.read_bytes()[:200].decode(errors="replace")
        if found != _STAMP:
            raise ConfigError(
                f"storage.path = {str(self.path)!r} holds pages of another format ({found.strip()[:60]!r}, not "
                f"{_STAMP.strip()!r}): name another folder or empty this one"
            )

    def _can_direct(self, config: FileConfig) -> bool:
        if not config.direct or not hasattr(os, "O_DIRECT"):
            return False
        try:
            os.close(os.open(self.path / FORMAT, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            if config.direct == "auto":
                return False
            raise ConfigError(
                f"storage.direct = true, but the filesystem of {str(self.path)!r} has no direct I/O "
                f'({error.strerror}): set it to "auto"'
            ) from None
        return True


def _lock(fd: int, until: float) -> None:
    """A process that was stopped while it held the lock must cost this one writes, not its threads."""
    pause = 0.001
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise OSError(errno.EAGAIN, f"another process has held the folder for {PATIENCE_S:g} s") from None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space or name another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "allow this user to read and write it, or name another folder"
    return "name another folder"
