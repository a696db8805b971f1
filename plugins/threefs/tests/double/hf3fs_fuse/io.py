"""Stands in for the library's Python half where that cannot be had: the same calls, handed on to the other double."""

import uuid
from pathlib import Path
from typing import Any

import hf3fs_py_usrbio as extension
from hf3fs_py_usrbio import deregister_fd, extract_mount_point, force_fsync, register_fd

__all__ = ["deregister_fd", "extract_mount_point", "force_fsync", "make_ioring", "make_iovec", "register_fd"]


class Memory:
    def __init__(self, inner: extension.iovec, link: Path) -> None:
        self._inner, self._link = inner, link

    def __del__(self) -> None:
        self._link.unlink()

    def __getitem__(self, part: slice) -> extension.iovec:
        return self._inner[part]


class Ring:
    def __init__(self, inner: extension.ioring) -> None:
        self._inner = inner

    def prepare(self, iov: Any, *args: Any, **named: Any) -> Any:
        return self._inner.prepare(iov, *args, **named)

    def submit(self) -> Any:
        return self._inner.submit()

    def wait(self, *args: Any, **named: Any) -> Any:
        return self._inner.wait(*args, **named)


def make_iovec(shm: Any, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1) -> Memory:
    name = str(uuid.uuid4())
    link = Path(hf3fs_mount_point) / "3fs-virt" / "iovs" / (name + (f".b{block_size}" if block_size else ""))
    link.symlink_to(f"/dev/shm/{shm.name}")
    return Memory(extension.iovec(shm.buf, name, hf3fs_mount_point, block_size, numa), link)


def make_ioring(
    hf3fs_mount_point: str,
    entries: int,
    for_read: bool = True,
    io_depth: int = 0,
    priority: int | None = None,
    timeout: int | None = None,
    numa: int = -1,
    flags: int = 0,
) -> Ring:
    return Ring(extension.ioring(hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, flags))
