"""A peer's books: what is in use is never given away, and what a client held comes back when it is gone."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepwell import PluginError
from stepwell_nixl import make_ucx
from stepwell_nixl.book import Book, Slot
from stepwell_nixl.config import UcxConfig
from stepwell_nixl.peer import Session
from stepwell_nixl.wire import (
    FULL,
    HELD,
    VERSION,
    Allocate,
    Delete,
    Find,
    Held,
    Hello,
    Lent,
    LetGo,
    Pin,
    Publish,
    Refused,
)
from stepwell_testkit import KitContext

SLAB = 1000


def key(number: int) -> bytes:
    return number.to_bytes(40, "big")


def put(book: Book, number: int, size: int = 100, now: float = 0.0) -> Slot:
    slot = book.allocate(key(number), size)
    assert slot is not None
    book.publish(slot, now)
    return slot


def session(book: Book, token: str = "") -> Session:
    memory: Any = SimpleNamespace(address=1 << 20, nbytes=4 * SLAB, metadata=b"")
    one = Session(book, memory, token)
    if not token:
        one.answer(Hello(VERSION, ""))
    return one


def ask(one: Session, request: Any) -> list[int]:
    lent = one.answer(request)
    assert isinstance(lent, Lent)
    return np.frombuffer(lent.addresses, dtype=np.int64).tolist()


def test_the_oldest_page_leaves_first() -> None:
    book = Book(2 * SLAB, SLAB)
    for number in range(25):
        put(book, number)
    assert [number for number in range(25) if book.find(key(number), 0)] == list(range(5, 25))


def test_a_page_is_found_when_it_was_written_and_not_before() -> None:
    book = Book(SLAB, SLAB)
    slot = book.allocate(key(1), 100)
    assert slot is not None and book.find(key(1), 0) is None
    book.publish(slot, 0)
    assert book.find(key(1), 0) is slot and book.find(key(1), 0, 200) is None


def test_a_slot_that_is_read_is_given_to_nobody_though_its_page_has_left() -> None:
    book = Book(SLAB, SLAB)
    held = put(book, 0)
    book.pin(held)
    book.remove(held)
    for number in range(1, 40):
        assert put(book, number).offset != held.offset
    book.unpin(held)
    assert held.offset in {put(book, number).offset for number in range(40, 50)}


def test_a_slot_that_is_written_is_given_to_nobody() -> None:
    book = Book(SLAB, SLAB)
    writing = [book.allocate(key(number), 100) for number in range(10)]
    assert None not in writing and len({slot.offset for slot in writing if slot}) == 10
    assert book.allocate(key(10), 100) is None
    assert book.allocate(key(11), 50) is None
    assert writing[3] is not None
    book.abandon(writing[3])
    assert put(book, 12).offset == writing[3].offset


def test_memory_passes_to_pages_of_another_size() -> None:
    book = Book(4 * SLAB, SLAB)
    for number in range(40):
        put(book, number, 100)
    for number in range(100, 108):
        put(book, number, 500)
    assert all(book.find(key(number), 0) for number in range(100, 108))
    assert book.allocate(key(200), SLAB + 1) is None


def test_a_page_outlives_its_time() -> None:
    book = Book(SLAB, SLAB, ttl_s=10)
    put(book, 1, now=100)
    assert book.find(key(1), 109) and not book.find(key(1), 111) and len(book) == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_two_uses_of_memory_overlap(seed: int) -> None:
    """Random calls; at each step no two of: what is written, read or found, lie over each other."""
    dice = random.Random(seed)
    book = Book(4 * SLAB, SLAB)
    writing: list[Slot] = []
    reading: list[Slot] = []
    for _ in range(600):
        number, size = dice.randrange(30), dice.choice([100, 100, 250, 1000])
        match dice.choice(["allocate", "publish", "abandon", "pin", "unpin", "remove"]):
            case "allocate" if (slot := book.allocate(key(number), size)) is not None:
                writing.append(slot)
            case "publish" if writing:
                book.publish(writing.pop(dice.randrange(len(writing))), 0)
            case "abandon" if writing:
                book.abandon(writing.pop(dice.randrange(len(writing))))
            case "pin" if (slot := book.find(key(number), 0)) is not None:
                book.pin(slot)
                reading.append(slot)
            case "unpin" if reading:
                book.unpin(reading.pop(dice.randrange(len(reading))))
            case "remove" if (slot := book.find(key(number), 0)) is not None:
                book.remove(slot)
        found = [slot for number in range(30) if (slot := book.find(key(number), 0)) is not None]
        used = {id(slot): (slot.offset, slot.slab.size) for slot in [*writing, *reading, *found]}
        ends = 0
        for offset, size in sorted(used.values()):
            assert offset >= ends, "two slots overlap"
            ends = offset + size
        assert ends <= 4 * SLAB
    for slot in writing:
        book.abandon(slot)
    for slot in reading:
        book.unpin(slot)
    assert not any(slab.busy for slab in book._slabs)


def test_a_client_that_is_gone_holds_nothing() -> None:
    book = Book(SLAB, SLAB)
    one, two = session(book), session(book)
    assert min(ask(one, Allocate(b"".join(map(key, range(6))), 100))) > 0
    put(book, 100)
    assert ask(one, Pin(key(100) + key(101), 100))[1] == HELD
    assert ask(two, Allocate(b"".join(map(key, range(6, 10))), 100)).count(FULL) == 1
    one.end()
    assert FULL not in ask(two, Allocate(b"".join(map(key, range(10, 16))), 100))


def test_what_was_not_written_whole_is_not_found() -> None:
    one = session(Book(SLAB, SLAB))
    lent = one.answer(Allocate(key(1) + key(2), 100))
    assert isinstance(lent, Lent)
    one.answer(Publish(lent.lease, b"\1\0"))
    assert one.answer(Find(key(1) + key(2))) == Held(b"\1\0")
    one.answer(Publish(lent.lease, b"\1\1"))  # the lease has ended
    assert one.answer(Find(key(1) + key(2))) == Held(b"\1\0")
    assert one.answer(LetGo(99)) is None
    one.answer(Delete(key(1)))
    assert one.answer(Find(key(1))) == Held(b"\0")


def test_a_stranger_is_refused() -> None:
    book = Book(SLAB, SLAB)
    assert isinstance(session(book, "secret").answer(Find(key(1))), Refused)
    assert isinstance(session(book, "secret").answer(Hello(VERSION, "guess")), Refused)
    assert isinstance(session(book, "secret").answer(Hello(VERSION + 1, "secret")), Refused)


def test_a_peer_that_is_not_there_is_one_sentence(tmp_path: Any) -> None:
    with pytest.raises(PluginError, match=r"storage\.peer = '127\.0\.0\.1:1'.*stepwell nixl peer"):
        make_ucx(UcxConfig(peer="127.0.0.1:1"), KitContext(tmp_path))


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        UcxConfig(peer=address)


def test_a_process_that_used_ucx_ends_well() -> None:
    code = "from stepwell_nixl.client import make_ucx_agent; agent = make_ucx_agent('lo')"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
