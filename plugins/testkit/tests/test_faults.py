"""The faulty storage does what it says, and nothing else; the arena holds what it is given."""

import threading
import time

import pytest

from stepwell import DONE, MISSING, Done, Failed
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell_testkit import Faults, FaultyStorage, KitArena
from stepwell_testkit.bench import Bench

PAGE = 4096


@pytest.fixture
def bench(context):
    bench = Bench(FaultyStorage(MemoryStorage(MemoryConfig(), context), Faults()), PAGE, 16)
    bench.put(range(6))
    return bench


def test_without_faults_it_is_what_it_wraps(bench):
    bench.gets(range(6))
    bench.storage.delete(bench.keys([2]))
    assert list(bench.storage.contains(bench.keys([1, 2]))) == [True, False]
    assert bench.storage.calls == {"contains": 1, "read": 1, "write": 1, "delete": 1}
    bench.storage.close()


def test_every_third_page_fails_to_be_read(bench):
    bench.storage.faults = Faults(read_error=3)
    results, _ = bench.read(range(6))
    assert [type(result) for result in results] == [Done, Done, Failed, Done, Done, Failed]
    assert [type(result) for result in bench.read(range(3))[0]] == [Done, Done, Failed], "counted over calls"


def test_a_short_read_fills_half_and_says_so(bench):
    bench.storage.faults = Faults(short_read=2)
    results, pages = bench.read([0, 1])
    assert results[0] == DONE
    assert isinstance(results[1], Failed)
    assert pages[1] == bench.bytes_of(1)[: PAGE // 2] + bytes(PAGE // 2)


def test_a_corrupt_page_is_done_and_one_bit_off(bench):
    bench.storage.faults = Faults(corrupt=2)
    results, pages = bench.read([0, 1])
    assert list(results) == [DONE, DONE]
    assert pages[0] == bench.bytes_of(0)
    wrong = [a ^ b for a, b in zip(pages[1], bench.bytes_of(1), strict=True) if a != b]
    assert wrong == [1]


def test_lost_pages_are_missing(bench):
    bench.storage.faults = Faults(lost=2)
    assert list(bench.read([0, 1, 2])[0]) == [DONE, MISSING, DONE]


def test_what_failed_to_be_written_is_not_there(bench):
    bench.storage.faults = Faults(write_error=4)  # six were written before
    results = bench.write([6, 7, 8])
    assert [type(result) for result in results] == [Done, Failed, Done]
    bench.storage.faults = Faults()
    assert bench.found([6, 7, 8]) == [True, False, True]


def test_exactly_one_page_fails(bench):
    bench.storage.faults = Faults(read_error_at=2, write_error_at=8)  # six were written before
    assert [type(result) for result in bench.read(range(6))[0]] == [Done, Failed, Done, Done, Done, Done]
    assert [type(result) for result in bench.write(range(6, 10))] == [Done, Failed, Done, Done]
    assert bench.found(range(6, 10)) == [True, False, True, True]


def test_a_short_write_takes_room_and_shows_nothing_until_it_is_written_again(bench):
    bench.storage.faults = Faults(short_write=7)
    assert [type(result) for result in bench.write([6, 7])] == [Failed, Done]
    assert bench.found([6, 7]) == [False, True]
    assert list(bench.storage.contains(bench.keys([6, 7]))) == [False, True]
    assert sorted(size for batch in bench.storage.inner.scan() for _, size in batch) == [PAGE // 2] + [PAGE] * 7
    bench.lists([*range(6), 7])
    bench.storage.faults = Faults()
    bench.put([6])
    bench.gets(range(8))


def test_a_page_there_already_or_twice_in_a_batch_is_refused(bench):
    bench.storage.faults = Faults(refuses_duplicates=True)
    assert [type(result) for result in bench.write([6, 3, 7, 6])] == [Done, Failed, Done, Failed]
    bench.gets(range(8))


def test_a_page_goes_between_question_and_read(bench):
    bench.storage.faults = Faults(evicts_between=2)
    assert all(bench.storage.contains(bench.keys(range(4))))
    assert bench.found(range(4)) == [True, False, True, False]


def test_the_room_is_used_up(bench):
    bench.storage.faults = Faults(room=8 * PAGE)  # six were written before
    assert [type(result) for result in bench.write([6, 7, 8, 9])] == [Done, Done, Failed, Failed]
    assert bench.found(range(10)) == [True] * 8 + [False] * 2


def test_a_server_is_away_for_a_while(bench):
    bench.storage.faults = Faults(down=range(2, 4))  # one call was made before
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the server is away"):
            bench.read([1])
    bench.gets([1])


def test_every_second_call_raises_before_it_does_anything(bench):
    bench.storage.faults = Faults(raises=2)
    with pytest.raises(OSError, match="injected into call 2, delete"):
        bench.storage.delete(bench.keys([1]))
    bench.gets([1])


def test_a_call_can_be_slow_or_hang_as_long_as_a_test_likes(bench):
    bench.storage.faults = Faults(slow_s=0.05)
    start = time.monotonic()
    bench.gets([1])
    assert time.monotonic() - start >= 0.05
    gate = threading.Event()
    bench.storage.faults = Faults(gate=gate)
    stuck = threading.Thread(target=bench.gets, args=([1],), daemon=True)
    stuck.start()
    stuck.join(0.05)
    assert stuck.is_alive()
    gate.set()
    stuck.join(10)
    assert not stuck.is_alive()


def test_the_arena_is_shared_memory_of_whole_blocks():
    arena = KitArena(5000, 3)
    assert arena.slots(0) == (0, 8192, 5000)
    assert arena.nbytes == 3 * 8192
    arena.paint(7)
    arena.fill(1, b"x" * 5000)
    assert arena.page(1) == b"x" * 5000
    assert set(arena.page(0)) == set(arena.page(2)) == set(arena.slack(1)[5000:]) == {7}
    views = arena.views([2, 1])
    assert bytes(views.buffers()[1]) == b"x" * 5000
    assert views.addresses[:, 0].tolist() == [arena.address + 2 * 8192, arena.address + 8192]
    with open(arena.fd, "rb", closefd=False) as file:
        file.seek(8192)
        assert file.read(5000) == b"x" * 5000


def test_a_kit_arena_has_parts_like_a_slot_of_core() -> None:
    arena = KitArena(5000, 3, parts=2)
    assert (arena.slots(0), arena.parts(0)) == ((0, 16384, 5000), (2, 8192))
    for view, byte in zip(arena.views([2, 1]).buffers(), b"wxyz", strict=True):
        view[:] = bytes([byte]) * 5000
    assert [bytes(view[:1]) for view in arena.views([1, 2]).buffers()] == [b"y", b"z", b"w", b"x"]
    assert arena.page(1) == b"y" * 5000
