"""A page whose length nobody knows is judged by the trailer that it carries."""

from __future__ import annotations

import random

import pytest

from stepwell.cache.arena import TRAILER_BYTES, slot_bytes
from stepwell.engine.seal import MAGIC, inspect, payloads, seal

KEY = bytes(range(40))
SIZES = [1, 300, 448, 449, 4032, 4033, 4096, 5000, 65472, 65473, 262144]


def page(payload: int, key: bytes = KEY, size: int | None = None) -> memoryview:
    """A sealed slot, padded with what may have lain there before."""
    dice = random.Random(payload)
    slot = memoryview(bytearray(dice.randbytes(size or slot_bytes(payload))))
    seal(slot, payload, key)
    return slot


@pytest.mark.parametrize("payload", SIZES)
def test_a_sealed_slot_is_right_whatever_its_payload(payload: int) -> None:
    assert payloads(page(payload)) == [payload]
    assert inspect(page(payload), KEY) is None


@pytest.mark.parametrize("payload", SIZES)
def test_a_slot_without_padding_is_right_too(payload: int) -> None:
    assert inspect(page(payload, size=payload + TRAILER_BYTES), KEY) is None


@pytest.mark.parametrize("payload", SIZES)
def test_every_changed_bit_of_payload_and_trailer_is_noticed(payload: int) -> None:
    slot = page(payload)
    dice = random.Random(1)
    for at in [0, payload - 1, *range(payload, payload + TRAILER_BYTES), *dice.choices(range(payload), k=20)]:
        slot[at] ^= 1 << dice.randrange(8)
        assert inspect(slot, KEY) is not None, f"byte {at} of {payload}"
        seal_again = page(payload)
        slot[at] = seal_again[at]
    assert inspect(slot, KEY) is None


def test_it_says_what_is_wrong() -> None:
    assert inspect(page(5000, b"other".ljust(40)), KEY) == "it is another page"
    slot = page(5000)
    slot[7] ^= 1
    assert inspect(slot, KEY) == "the checksum differs"
    assert "no trailer" in str(inspect(page(5000)[:4096], KEY))
    assert "no trailer" in str(inspect(memoryview(bytearray(4096)), KEY))


@pytest.mark.parametrize("size", [0, 1, 8, 63])
def test_what_is_too_short_for_a_trailer_has_none(size: int) -> None:
    slot = memoryview(bytearray(MAGIC * 8)[:size])
    assert payloads(slot) == []
    assert "no trailer" in str(inspect(slot, KEY))


def test_a_trailer_that_lies_elsewhere_than_it_says_is_none() -> None:
    moved = bytearray(page(5000))
    slot = memoryview(moved[100:] + bytes(100))
    assert "no trailer" in str(inspect(slot, KEY))


def test_a_payload_that_looks_like_a_trailer_is_no_harm() -> None:
    """A payload may hold a trailer of an older page that even says the right place."""
    payload = 5000
    slot = memoryview(bytearray(slot_bytes(payload)))
    for at in (4500, 4700):
        seal(slot, at, b"older".ljust(40))
    slot[4900:4908] = MAGIC
    seal(slot, payload, KEY)
    assert payloads(slot) == [4500, 4700, payload]
    assert inspect(slot, KEY) is None
    slot[0] ^= 1
    assert inspect(slot, KEY) is not None
