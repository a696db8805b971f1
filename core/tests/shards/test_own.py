"""Ranks that have an arena and a storage each: a page is there only where every rank has its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from stepwell.abc.storage import Storage
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.cache.arena import Arena
from stepwell.cache.shards import own, sharded
from stepwell.engine.page_io import LocalPageIO, Unfit
from stepwell.engine.ranks.pages import RanksPageIO, served
from stepwell.engine.seal import Damaged
from stepwell.types import DONE, MISSING, Done, Failed, Full, GroupSpec, Missing, PageKey

PAGE, PAGES, WORLD = 4, 6, 2
GROUPS = sharded([GroupSpec("full", Full(), 64, (0,), 4, WORLD), GroupSpec("latent", Full(), 32, (1,))], 4)
IDS = np.array([3, 0, 5], np.int32)


def memory() -> MemoryStorage:
    return MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]


class Ranks:
    """What each of two ranks has, and the brain's view of both."""

    def __init__(self, *storages: Storage) -> None:
        self.arenas = [Arena.create(own(GROUPS), PAGE, (PAGES, PAGES)) for _ in range(WORLD)]
        self.servers = [
            LocalPageIO(storage, arena, GROUPS, rank)
            for rank, (storage, arena) in enumerate(zip(storages, self.arenas, strict=True))
        ]
        self.broken: dict[int, bytes | Exception] = {}
        self.asked: list[tuple[int, ...]] = []
        self.pages = RanksPageIO(GROUPS, WORLD, self._call)

    def _call(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes | Exception]:
        self.asked.append(tuple(questions))
        return {rank: self.broken.get(rank) or served(self.servers[rank], body) for rank, body in questions.items()}

    def fill(self) -> None:
        for rank, arena in enumerate(self.arenas):
            for group in (0, 1):
                for at, part in enumerate(arena.payloads(group, IDS)):
                    part[:] = bytes([1 + 50 * group + 20 * rank * (1 - group) + at]) * len(part)

    def seen(self, group: int) -> list[bytes]:
        """First byte of each part of each rank."""
        return [b"".join(part[:1] for part in arena.payloads(group, IDS)) for arena in self.arenas]

    def keys(self, group: int) -> list[PageKey]:
        return [number.to_bytes(32, "big") + GROUPS[group].tag for number in range(len(IDS))]

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Whose storages are two clients of one, full of pages."""
    shared = memory()
    made = Ranks(shared, shared)
    made.fill()
    for group in (0, 1):
        assert made.pages.write(group, made.keys(group), IDS) == [DONE] * 3
    yield made
    made.close()


def shelf(ranks: Ranks) -> dict[PageKey, bytes]:
    return ranks.servers[0]._storage._pages  # type: ignore[attr-defined, no-any-return]


def test_each_rank_moves_its_own_parts_and_rank_0_alone_writes_what_all_hold(ranks: Ranks) -> None:
    assert ranks.asked == [(0, 1), (0,)]
    assert len(shelf(ranks)) == 3 * 4 + 3
    before = [ranks.seen(group) for group in (0, 1)]
    for arena in ranks.arenas:
        arena.memory[:] = bytes(arena.nbytes)
    for group in (0, 1):
        assert ranks.pages.read(group, ranks.keys(group), IDS) == [DONE] * 3
        assert ranks.seen(group) == before[group]
    assert before[0][0] != before[0][1] and before[1][0] == before[1][1]


def test_what_own_arenas_stored_a_shared_one_reads(ranks: Ranks) -> None:
    whole = sharded([GroupSpec("full", Full(), 128, (0,), 8), GROUPS[1]], 4)
    arena = Arena.create(whole, PAGE, (PAGES, PAGES))
    io = LocalPageIO(ranks.servers[0]._storage, arena, whole)
    for group in (0, 1):
        assert io.read(group, ranks.keys(group), IDS) == [DONE] * 3
    first = b"".join(part[:1] for part in arena.payloads(0, IDS[:1]))
    assert first == ranks.seen(0)[0][:2] + ranks.seen(0)[1][:2]
    arena.close()


def test_a_page_counts_only_if_every_rank_has_it(ranks: Ranks) -> None:
    key = ranks.keys(0)[1][:32] + GROUPS[0].tags[3]
    del shelf(ranks)[key]
    mixed = ranks.keys(0) + ranks.keys(1)
    assert ranks.pages.contains(mixed) == [DONE, MISSING, DONE, DONE, DONE, DONE]
    assert ranks.pages.read(0, ranks.keys(0), IDS) == [DONE, MISSING, DONE]


def test_a_wrong_checksum_on_one_rank_costs_the_page_and_says_which_rank(ranks: Ranks) -> None:
    key = ranks.keys(0)[2][:32] + GROUPS[0].tags[2]
    shelf(ranks)[key] = b"?" + shelf(ranks)[key][1:]
    assert ranks.pages.read(0, ranks.keys(0), IDS) == [DONE, DONE, Damaged("rank 1: the checksum differs")]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (OSError("no cable"), "rank 1: OSError: no cable"),
        (b"\xc1", "rank 1 answered nonsense (DecodeError)"),
        (b"\x92\xc4\x02dd\x90", "rank 1: 2 results came for 3 pages"),
        (b"\x92\xc4\x03dfd\x90", "rank 1 answered nonsense (StopIteration)"),
        (b"\x92\xc4\x03d?d\x90", "rank 1 answered nonsense (KeyError)"),
    ],
)
def test_a_rank_that_fails_fails_its_pages_and_no_others(ranks: Ranks, broken: bytes | Exception, words: str) -> None:
    ranks.broken[1] = broken
    assert ranks.pages.read(0, ranks.keys(0), IDS) == [Failed(words)] * 3
    assert ranks.pages.write(0, ranks.keys(0), IDS) == [Failed(words)] * 3
    assert ranks.pages.write(1, ranks.keys(1), IDS) == [DONE] * 3, "rank 0's alone"
    with pytest.raises(Unfit, match="rank 1"):
        ranks.pages.contains(ranks.keys(0))
    ranks.broken.clear()
    assert ranks.pages.read(0, ranks.keys(0), IDS) == [DONE] * 3


def test_storages_that_share_nothing_do_not_have_what_rank_0_alone_wrote() -> None:
    ranks = Ranks(memory(), memory())
    ranks.fill()
    assert [ranks.pages.write(group, ranks.keys(group), IDS) for group in (0, 1)] == [[DONE] * 3] * 2
    assert ranks.pages.contains(ranks.keys(0)) == [DONE] * 3
    assert ranks.pages.contains(ranks.keys(1)) == ranks.pages.read(1, ranks.keys(1), IDS) == [MISSING] * 3
    assert all(isinstance(result, Done | Missing) for result in ranks.pages.read(0, ranks.keys(0), IDS))
    ranks.close()
