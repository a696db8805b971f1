"""A page that comes back from storage is used only if it is the page that was asked for, every bit of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cache.arena import TRAILER_BYTES
from stepwell.engine.seal import Damaged, check, check_all, seal
from stepwell.types import DONE, MISSING, Done, Failed

KEY = bytes(range(40))
OTHER = bytes(reversed(range(40)))


def sealed(payload: bytes, key: bytes = KEY, room: int = 512) -> memoryview:
    slot = memoryview(bytearray(room))
    slot[: len(payload)] = payload
    seal(slot, len(payload), key)
    return slot


@given(payload=st.binary(min_size=1, max_size=400))
def test_what_was_sealed_passes(payload: bytes) -> None:
    assert check(sealed(payload), len(payload), KEY) is None


@settings(max_examples=300)
@given(payload=st.binary(min_size=1, max_size=200), data=st.data())
def test_any_flipped_bit_is_seen(payload: bytes, data: st.DataObject) -> None:
    slot = sealed(payload)
    bit = data.draw(st.integers(0, (len(payload) + TRAILER_BYTES) * 8 - 1))
    slot[bit // 8] ^= 1 << bit % 8
    assert check(slot, len(payload), KEY) is not None


@given(payload=st.binary(min_size=64, max_size=400), data=st.data())
def test_any_truncation_is_seen(payload: bytes, data: st.DataObject) -> None:
    good = bytes(sealed(payload))
    end = len(payload) + TRAILER_BYTES
    kept = data.draw(st.integers(0, end - 1))
    cut = memoryview(bytearray(good[:kept] + bytes(len(good) - kept)))
    if bytes(cut[:end]) != good[:end]:
        assert check(cut, len(payload), KEY) is not None


def test_b085_a_swapped_page_is_seen() -> None:
    assert check(sealed(b"a" * 100, OTHER), 100, KEY) == "it is another page"


def test_a_page_of_another_size_is_seen() -> None:
    slot = sealed(b"a" * 100)
    assert check(slot, 108, KEY) is not None


def test_an_earlier_page_in_the_slot_does_not_pass_for_what_a_read_left_half_done() -> None:
    """Storage says done but wrote only the front: the old page's trailer is still there."""
    slot = sealed(b"old" * 40)
    slot[:60] = b"new" * 20
    assert check(slot, 120, KEY) == "the checksum differs"


def test_only_pages_that_storage_called_done_are_looked_at() -> None:
    good, bad = sealed(b"x" * 50), sealed(b"y" * 50)
    bad[3] ^= 1
    failed = Failed("no")
    results = check_all([good, bad, bad, bad], 50, [KEY] * 4, [DONE, DONE, MISSING, failed])
    assert results == [Done(), Damaged("the checksum differs"), MISSING, failed]
