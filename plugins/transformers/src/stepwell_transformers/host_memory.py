"""The host tier's memory, made real before a device is told of it: with progress, and by several threads.

To register memory is to have the kernel find every page of it. A hundred gigabytes that nobody has touched take the
better part of a minute in one call that says nothing; touched in pieces beforehand, they come faster, and where the
machine does not have them, that is known after how much.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stepwell import ArenaView, ConfigError
from stepwell_transformers.apart import Report

PIECE = 4 * 2**30
"""Bytes between two lines of progress; less than that is not worth a word."""
SLICE = 2**28
THREADS = 8
POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 and later."""


def populate(arena: ArenaView, report: Report) -> None:
    """Touch all of the arena's memory, without changing it. ConfigError where the machine does not have it."""
    total = arena.nbytes
    fill = _advised()
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), thread_name_prefix="stepwell-populate") as threads:
        for start in range(0, total, PIECE):
            end = min(start + PIECE, total)
            if total > PIECE:
                report("taking the host tier's memory", start, total)
            slices = [(at, min(SLICE, end - at)) for at in range(start, end, SLICE)]
            try:
                list(threads.map(lambda part: fill(arena, *part), slices))
            except OSError as error:
                raise ConfigError(
                    f"the machine gave {start / 2**30:.3g} of the {total / 2**30:.3g} GiB of the host tier and no more "
                    f"({error.strerror}): lower cache.host_gib"
                ) from error


def refused(nbytes: int, why: object) -> ConfigError:
    """What is said where a device cannot be told of the host tier's memory."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit / 2**30:.3g} GiB"
    return ConfigError(
        f"the host tier's {nbytes / 2**30:.3g} GiB cannot be pinned for the device ({why}): lower cache.host_gib, "
        f"or raise the limit of locked memory (ulimit -l), which is {locked}"
    )


def _advised() -> Callable[[ArenaView, int, int], None]:
    """How to touch a part: by the kernel's own call where there is one."""
    advise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if advise is None:
        return _touched
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def fill(arena: ArenaView, start: int, length: int) -> None:
        if not advise(arena.address + start, length, POPULATE_WRITE):
            return
        error = ctypes.get_errno()
        if error != errno.EINVAL:
            raise OSError(error, os.strerror(error))
        _touched(arena, start, length)  # a kernel before 5.14

    return fill


def _touched(arena: ArenaView, start: int, length: int) -> None:
    """Write a byte of each page of memory as it is."""
    part = np.frombuffer(arena.memory[start : start + length], dtype=np.uint8)[:: os.sysconf("SC_PAGE_SIZE")]
    np.copyto(part, part.copy())
