"""Where host pages lie, and what storage gets to see of them."""

import ctypes
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.cache import host
from stepwell.cache.arena import BLOCK, SMALL_BLOCK, TRAILER_BYTES, Arena, plan, slot_bytes
from stepwell.errors import ConfigError
from stepwell.types import Full, GroupSpec, Window


def group(name: str, token_bytes: int, window: int | None = None) -> GroupSpec:
    return GroupSpec(name, Full() if window is None else Window(window), token_bytes, (0,))


def test_slots_are_disjoint_aligned_and_hold_payload_and_trailer() -> None:
    groups = (group("full", 640), group("swa", 64, 8))
    arena = Arena.create(groups, 16, (5, 9))
    ends = 0
    for number, count in ((0, 5), (1, 9)):
        first, stride, payload = arena.slots(number)
        assert first % BLOCK == 0 and first >= ends
        assert payload + TRAILER_BYTES <= stride
        assert stride % SMALL_BLOCK == 0
        ends = first + stride * count
    assert ends <= arena.nbytes
    arena.close()


@given(payload=st.integers(1, 1 << 20))
def test_a_slot_is_the_smallest_that_direct_io_takes(payload: int) -> None:
    stride = slot_bytes(payload)
    block = BLOCK if payload + TRAILER_BYTES >= BLOCK else SMALL_BLOCK
    assert stride % block == 0
    assert payload + TRAILER_BYTES <= stride < payload + TRAILER_BYTES + block


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 20)), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 16, 64]),
)
def test_regions_never_overlap(sizes: list[tuple[int, int]], page_size: int) -> None:
    groups = [group(f"g{at}", token_bytes) for at, (token_bytes, _) in enumerate(sizes)]
    regions, nbytes = plan(groups, page_size, [count for _, count in sizes])
    spans = [(at.first, at.first + at.stride * count) for at, (_, count) in zip(regions, sizes, strict=True)]
    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    assert spans[-1][1] <= nbytes


def test_views_are_whole_slots_and_payloads_the_pages_bytes() -> None:
    arena = Arena.create((group("full", 300),), 16, (4,))
    first, stride, payload = arena.slots(0)
    ids = np.array([3, 1], np.int32)
    for page, at in zip(arena.payloads(0, ids), ids, strict=True):
        page[:] = bytes([at]) * payload
    views = arena.views(0, ids)
    assert views.sizes.tolist() == [stride]
    assert views.addresses[:, 0].tolist() == [arena.address + first + at * stride for at in ids.tolist()]
    assert [bytes(buffer[:payload]) for buffer in views.buffers()] == [bytes([at]) * payload for at in ids]
    assert ctypes.string_at(int(views.addresses[0, 0]), 4) == b"\x03" * 4  # what a native client would read
    arena.close()


def test_another_process_sees_the_same_bytes_through_the_descriptor() -> None:
    arena = Arena.create((group("full", 64),), 16, (2,))
    assert arena.fd >= 0
    arena.memory[:5] = b"hello"
    child = os.fork()
    if child == 0:
        seen = os.pread(arena.fd, 5, 0)
        os.pwrite(arena.fd, b"there", 0)
        os._exit(0 if seen == b"hello" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(arena.memory[:5]) == b"there"
    arena.close()


def test_too_little_memory_is_said_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "container", lambda *where: host.Room(10 * 2**20, "a limit"))
    with pytest.raises(ConfigError, match=r"needs 64 MiB .* 10 MiB of memory are free \(a limit\): lower cache\.host"):
        Arena.create((group("full", 4096 - 4),), 16, (1024,), setting="cache.host_gib")


def test_without_memfd_shared_memory_is_a_nameless_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    arena = Arena.create((group("full", 64),), 16, (2,))
    assert arena.fd >= 0
    assert not list(Path("/dev/shm").glob("stepwell-arena-*"))
    arena.close()


def test_a_full_tmpfs_is_an_error_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*lower cache\.host_pages"):
        Arena.create((group("full", 64),), 16, (2,))


def test_closing_while_somebody_holds_a_view_keeps_the_view_alive() -> None:
    arena = Arena.create((group("full", 64),), 16, (2,))
    page = arena.payloads(0, np.array([0], np.int32))[0]
    arena.close()
    page[:3] = b"abc"
    assert bytes(page[:3]) == b"abc"
