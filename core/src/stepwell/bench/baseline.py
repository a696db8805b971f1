"""What a storage backend is measured against: the same bytes, moved by something that does nothing else."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from stepwell.errors import StepwellError

FIO_LIMIT_S = 120.0


class Baseline(Protocol):
    """Moves `mib` MiB in pages, and says how fast, in MB/s (10^6 bytes)."""

    @property
    def name(self) -> str:
        """What it is called in results."""

    @property
    def terms(self) -> str:
        """Layout, flags, block size and depth, in words."""

    def put(self) -> float:
        """Write all pages anew."""

    def get(self) -> float:
        """Read what was written last."""

    def clear(self) -> None:
        """Forget what was written."""


@dataclass(frozen=True)
class Terms:
    """How pages are moved to and from a folder."""

    folder: Path
    page_bytes: int
    pages: int
    threads: int
    direct: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.pages * self.page_bytes

    def __str__(self) -> str:
        io = "O_DIRECT" if self.direct else "buffered, page cache dropped before get"
        return (
            f"one preallocated file, {io}, no fsync, blocks of {self.page_bytes // 1024} KiB, "
            f"{self.threads} threads of depth 1"
        )


class Fio:
    """`fio` on the same disk. The rates are its own, so that neither its start nor its layout of the file count."""

    name = "fio"

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._file = terms.folder / "baseline.fio"
        self.command = [
            *("fio", "--name=pages", f"--filename={self._file}", f"--bs={terms.page_bytes}"),
            *("--ioengine=psync", "--thread", f"--numjobs={terms.threads}", "--group_reporting"),
            *(f"--size={terms.nbytes // terms.threads}", f"--offset_increment={terms.nbytes // terms.threads}"),
            *(f"--direct={int(terms.direct)}", "--fallocate=posix", "--invalidate=1", "--output-format=json"),
        ]

    @staticmethod
    def missing() -> bool:
        """Whether it is not installed."""
        return shutil.which("fio") is None

    @property
    def terms(self) -> str:
        return f"{self._terms}: {' '.join(self.command)} --rw=write|read"

    def put(self) -> float:
        self._file.unlink(missing_ok=True)
        return self._run("write")

    def get(self) -> float:
        drop_page_cache(self._terms.folder)
        return self._run("read")

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def _run(self, rw: str) -> float:
        done = subprocess.run(
            [*self.command, f"--rw={rw}"], capture_output=True, text=True, timeout=FIO_LIMIT_S, check=False
        )
        try:
            return float(json.loads(done.stdout)["jobs"][0][rw]["bw_bytes"]) / 1e6
        except (ValueError, LookupError):
            raise StepwellError(f"fio failed (status {done.returncode}): {done.stderr.strip()[:300]}") from None


class Plain:
    """preadv and pwritev of one page a call, by threads, to and from the very memory that the backend uses."""

    name = "plain"

    def __init__(self, terms: Terms, memory: memoryview) -> None:
        self._terms = terms
        self._file = terms.folder / "baseline.plain"
        self._pages = [memory[at : at + terms.page_bytes] for at in range(0, terms.nbytes, terms.page_bytes)]
        self.terms = f"{terms}, from and to the arena"

    def put(self) -> float:
        self._file.unlink(missing_ok=True)
        fd = self._open(os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, self._terms.nbytes)
        return self._time(fd, os.pwritev)

    def get(self) -> float:
        drop_page_cache(self._terms.folder)
        return self._time(self._open(os.O_RDONLY), os.preadv)

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def _open(self, flags: int) -> int:
        return os.open(self._file, flags | (os.O_DIRECT if self._terms.direct else 0), 0o600)

    def _time(self, fd: int, move: Callable[[int, Sequence[memoryview], int], int]) -> float:
        size = self._terms.page_bytes

        def work(lane: int) -> None:
            for nth in range(lane, len(self._pages), self._terms.threads):
                if move(fd, [self._pages[nth]], nth * size) != size:
                    raise StepwellError(f"the baseline moved less than a page in {self._terms.folder}")

        try:
            with ThreadPoolExecutor(self._terms.threads) as pool:
                start = time.perf_counter()
                list(pool.map(work, range(self._terms.threads)))
                return self._terms.nbytes / (time.perf_counter() - start) / 1e6
        finally:
            os.close(fd)


class Memcpy:
    """One copy in memory: what a backend that keeps no files cannot beat."""

    name = "memcpy"
    terms = "one copy of every page within memory, one thread"

    def __init__(self, memory: memoryview, page_bytes: int, pages: int) -> None:
        whole = np.frombuffer(memory, dtype=np.uint8)[: pages * page_bytes]
        self._pages = whole.reshape(pages, page_bytes)
        self._other = np.zeros_like(self._pages)

    def put(self) -> float:
        return self._copy(self._pages, self._other)

    def get(self) -> float:
        return self._copy(self._other, self._pages)

    def clear(self) -> None:
        """There is only ever one copy."""

    def _copy(
        self,
        source: np.ndarray[tuple[int, int], np.dtype[np.uint8]],
        to: np.ndarray[tuple[int, int], np.dtype[np.uint8]],
    ) -> float:
        start = time.perf_counter()
        for page, there in zip(source, to, strict=True):
            there[:] = page
        return source.nbytes / (time.perf_counter() - start) / 1e6


def drop_page_cache(folder: Path) -> None:
    """Make reads of all files in a folder go to the disk."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def can_direct(folder: Path) -> bool:
    """Whether the filesystem there takes O_DIRECT."""
    if not hasattr(os, "O_DIRECT"):
        return False
    probe = folder / "probe.direct"
    block = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        return os.pwritev(fd, [block], 0) == len(block)
    except OSError:
        return False
    finally:
        os.close(fd)
        probe.unlink()


def filesystem(folder: Path) -> str:
    """Type and device of the filesystem that a folder is on."""
    best = ("", "unknown filesystem")
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            device, mount, kind = line.split()[:3]
            if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
                best = (mount, f"{kind} on {device}")
    return best[1]
