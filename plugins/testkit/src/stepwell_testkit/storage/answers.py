"""What each call answers: one entry a key, in order, and only what is true."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import DONE, Missing, PageKey, Storage
from stepwell_testkit.bench import PAINT, Bench, answers
from stepwell_testkit.storage.base import ODD, PAGE, SLOTS, StorageBase


class Answers(StorageBase):
    """One call at a time, and nothing goes wrong."""

    def test_it_is_a_storage(self, bench: Bench) -> None:
        assert isinstance(bench.storage, Storage)

    def test_a_written_page_comes_back(self, bench: Bench) -> None:
        bench.put([1])
        bench.gets([1])

    def test_a_page_never_written_is_missing(self, bench: Bench) -> None:
        results, _ = bench.read([1, 2, 3])
        assert all(isinstance(result, Missing) for result in results), f"absent pages gave {results}"

    def test_answers_are_in_the_order_of_the_keys(self, bench: Bench) -> None:
        bench.put([1, 3, 4, 7])
        asked = [7, 2, 1, 5, 4, 6, 3, 8]
        assert bench.found(asked) == [number in (1, 3, 4, 7) for number in asked]

    def test_an_empty_batch_gives_no_answers(self, bench: Bench) -> None:
        assert len(bench.storage.contains([])) == 0
        assert len(bench.storage.read([], bench.arena.views([]))) == 0
        assert len(bench.storage.write([], bench.arena.views([]))) == 0
        bench.storage.delete([])

    def test_a_large_batch_is_one_call(self, bench: Bench) -> None:
        numbers = list(range(SLOTS))
        bench.put(numbers)
        bench.gets(numbers[::-1])

    def test_a_key_may_repeat_in_a_batch(self, bench: Bench) -> None:
        bench.put([1, 2, 1, 1])
        bench.gets([1, 1, 2, 1])
        assert len(bench.storage.contains(bench.keys([1, 1, 9, 1]))) == 4
        assert bench.found([9, 1, 9]) == [False, True, False]
        bench.storage.delete(bench.keys([1, 1]))
        bench.gets([2])

    def test_contains_mostly_tells_what_a_read_would_find(self, bench: Bench) -> None:
        bench.put(range(32))
        claims = bench.storage.contains(bench.keys(range(64)))
        assert len(claims) == 64
        assert all(claim in (True, False) for claim in claims)
        right = sum(bool(claim) == (number < 32) for number, claim in enumerate(claims))
        assert right >= 58, f"contains was right for {right} of 64 keys"

    def test_an_existing_key_may_be_written_again(self, bench: Bench) -> None:
        bench.put([1, 2])
        bench.put([3, 1, 4])
        bench.gets([1, 2, 3, 4])

    def test_b088_a_key_there_already_fails_no_other(self, bench: Bench) -> None:
        bench.put([3])
        bench.put([0, 1, 2, 3, 4, 5, 4, 7])  # each DONE: one was there, one comes twice
        bench.gets([7, 5, 4, 3, 2, 1, 0])

    def test_either_value_of_a_rewritten_key_may_stay_but_whole(self, bench: Bench) -> None:
        old, new = b"\x11" * PAGE, b"\x22" * PAGE
        for fill in (old, new):
            bench.arena.fill(0, fill)
            assert answers(bench.storage.write([bench.key(1)], bench.arena.views([0])), 1)[0] == DONE
        results, pages = bench.read([1])
        assert results[0] == DONE
        assert pages[0] in (old, new)

    def test_keys_that_differ_in_one_byte_are_different_pages(self, bench: Bench) -> None:
        base = bench.key(0)
        keys = [base[:at] + bytes([base[at] ^ 1]) + base[at + 1 :] for at in range(len(base))]
        self._hold_apart(bench, [base, *keys])

    def test_a_key_may_have_any_bytes(self, bench: Bench) -> None:
        self._hold_apart(bench, [bench.key(0)[:16] + end for end in ODD])

    def test_b057_a_page_stored_shorter_is_never_done_and_fails_no_other(self, bench: Bench) -> None:
        """Half a page under one key, as a writer of another layout leaves it; a store may refuse to write that."""
        half = bench.arena.views([3], PAGE // 2)
        answers(bench.storage.write([bench.key(3)], half), 1)
        bench.put([0, 1, 2, 4, 5])
        results, pages = bench.read(range(6))
        assert results[3] != DONE, "half a page was read as a whole one"
        others = [number for number in range(6) if number != 3]
        assert all(results[number] == DONE for number in others), f"one short page, and the batch answered {results}"
        assert all(pages[number] == bench.bytes_of(number) for number in others)

    def test_a_page_stored_longer_stays_within_its_view(self, bench: Bench) -> None:
        bench.put([1])
        bench.arena.paint(0x3C)
        answers(bench.storage.read([bench.key(1)], bench.arena.views([2], PAGE // 2)), 1)
        assert set(bench.arena.slack(2)[PAGE // 2 :]) == {0x3C}, "a read of half a page wrote beyond its view"

    def test_close_is_the_last_call(self, bench: Bench) -> None:
        bench.put(range(8))
        bench.gets(range(8))
        bench.storage.delete(bench.keys(range(8)))
        bench.close()

    def _hold_apart(self, bench: Bench, keys: Sequence[PageKey]) -> None:
        bench.remember(keys)
        for slot in range(len(keys)):
            bench.arena.fill(slot, bench.bytes_of(slot))
        views = bench.arena.views(range(len(keys)))
        assert set(answers(bench.storage.write(keys, views), len(keys))) == {DONE}
        bench.arena.paint(PAINT)
        assert set(answers(bench.storage.read(keys, views), len(keys))) == {DONE}
        wrong = [slot for slot in range(len(keys)) if bench.arena.page(slot) != bench.bytes_of(slot)]
        assert not wrong, f"keys {[keys[slot].hex() for slot in wrong]} have another's page"
