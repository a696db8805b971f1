"""How pages are cut into parts by heads, what each rank sees of them, and what storage is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.cache.arena import Arena, Region, plan, seen_by, slot_bytes
from stepwell.cache.mapped import Mapped
from stepwell.cache.shards import sharded
from stepwell.engine.page_io import LocalPageIO, Unfit, together
from stepwell.errors import ConfigError
from stepwell.types import DONE, MISSING, Done, Failed, Full, GroupSpec, Missing, PageKey, PageResult, PageViews, Window

PAGE, HEADS, HEAD_BYTES, LAYERS = 4, 8, 16, 2
PAGES = 3


def full(ranks: int = 1, heads: int = HEADS, **more: int) -> GroupSpec:
    """A group as each of so many ranks has it."""
    own = heads // ranks
    return GroupSpec("full", Full(), own * HEAD_BYTES * LAYERS, (0, 1), own, ranks, **more)


# --- how many parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "asked", "shards"),
    [
        (full(), None, 1),
        (full(), 1, 1),
        (full(), 4, 4),
        (full(2), None, 2),
        (full(2), 2, 2),
        (full(2), 8, 8),
        (full(1, 1), 4, 1),
    ],
)
def test_shards_are_as_asked_or_one_a_rank(group: GroupSpec, asked: int | None, shards: int) -> None:
    assert [made.shards for made in sharded([group], asked)] == [shards]


@pytest.mark.parametrize(
    ("group", "asked", "words"),
    [
        (full(), 3, r"cache\.head_shards = 3 does not divide the 8 KV heads of group full: use 1, 2, 4 or 8"),
        (full(4), 2, r"cache\.head_shards = 2 cannot be shared out evenly among the 4 ranks .* use 4 or 8"),
        (full(8), 16, r"does not divide the 8 KV heads of group full: use 8"),
    ],
)
def test_b059_shards_that_cannot_be_are_said_with_those_that_can(group: GroupSpec, asked: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sharded([group], asked)


def test_b061_tags_are_the_same_over_however_many_ranks_and_differ_by_shards() -> None:
    spread = {ranks: sharded([full(ranks)], 4)[0] for ranks in (1, 2, 4)}
    assert len({group.tags for group in spread.values()}) == len({group.tag for group in spread.values()}) == 1
    tags = [tag for asked in (1, 2, 4, 8) for tag in sharded([full()], asked)[0].tags]
    assert len(tags) == len(set(tags)) == 15


# --- where they lie ----------------------------------------------------------------------------------------------


def test_without_shards_nothing_is_other_than_before() -> None:
    (region,), nbytes = plan([full()], PAGE, [PAGES])
    payload = HEADS * HEAD_BYTES * LAYERS * PAGE
    assert region == Region(0, slot_bytes(payload), payload, 1, slot_bytes(payload))
    assert nbytes >= PAGES * region.stride
    assert full().tags == (full().tag,)


def test_ranks_see_their_own_parts_and_all_of_what_each_holds() -> None:
    latent = GroupSpec("latent", Window(8), 64, (2,))
    groups = sharded([full(2), latent], 4)
    regions, _ = plan(groups, PAGE, [PAGES, PAGES])
    whole, same = regions
    assert (whole.parts, whole.stride, whole.apart) == (4, 4 * whole.apart, slot_bytes(whole.payload))
    assert whole.payload == 2 * HEAD_BYTES * LAYERS * PAGE
    seen = [seen_by(rank, groups, regions) for rank in (0, 1)]
    assert [own.parts for own, _ in seen] == [2, 2]
    assert [own.first - whole.first for own, _ in seen] == [0, 2 * whole.apart]
    assert seen[0][1] == seen[1][1] == same


# --- a page stored by one, read by another -------------------------------------------------------------------------


class Engine:
    """An arena, and what the runners of so many ranks see of it; they keep K of page i's token t and head h."""

    def __init__(self, storage: MemoryStorage, ranks: int, shards: int | None) -> None:
        self.groups = sharded([full(ranks)], shards)
        self.arena = Arena.create(self.groups, PAGE, (PAGES,))
        self.io = LocalPageIO(storage, self.arena, self.groups)
        self.ranks = [
            Mapped(self.arena.fd, self.arena.nbytes, seen_by(rank, self.groups, self.arena.regions))
            for rank in range(ranks)
        ]

    def views(self, slot: int) -> Iterator[np.ndarray]:
        """[layers, tokens, heads of a part, bytes] of each part of a slot, rank by rank, in the order of heads."""
        for rank in self.ranks:
            first, stride, payload = rank.slots(0)
            parts, apart = rank.parts(0)
            for part in range(parts):
                begin = first + slot * stride + part * apart
                octets = np.frombuffer(rank.memory[begin : begin + payload], np.uint8)
                yield octets.reshape(LAYERS, PAGE, -1, HEAD_BYTES)

    def save(self, slot: int, page: np.ndarray) -> None:
        views = list(self.views(slot))
        for view, own in zip(views, np.split(page, len(views), axis=2), strict=True):
            view[:] = own

    def load(self, slot: int) -> np.ndarray:
        return np.concatenate(list(self.views(slot)), axis=2)

    def keys(self, numbers: Sequence[int]) -> list[PageKey]:
        return [number.to_bytes(32, "big") + self.groups[0].tag for number in numbers]

    def close(self) -> None:
        self.arena.close()


def page(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, PAGE, HEADS, HEAD_BYTES), np.uint8)


IDS = np.array([2, 0], np.int32)


@pytest.mark.parametrize("writers", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_b061_pages_stored_over_so_many_ranks_are_read_over_so_many_others(writers: int, readers: int) -> None:
    storage = MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]
    writer, reader = Engine(storage, writers, 4), Engine(storage, readers, 4)
    for slot in IDS:
        writer.save(slot, page(slot))
    keys = writer.keys([1, 2])
    assert writer.io.write(0, keys, IDS) == [DONE] * 2
    assert reader.io.contains([*keys, *reader.keys([3])]) == [DONE, DONE, MISSING]
    assert reader.io.read(0, keys, IDS[::-1]) == [DONE] * 2
    for slot, other in zip(IDS, IDS[::-1], strict=True):
        assert (reader.load(other) == page(slot)).all()
    writer.close()
    reader.close()


@pytest.mark.parametrize(("writers", "readers"), [(None, 4), (4, 2), (2, 8), (4, None)])
def test_b059_pages_of_other_shards_are_never_found(writers: int | None, readers: int | None) -> None:
    storage = MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]
    writer, reader = Engine(storage, 1, writers), Engine(storage, 1, readers)
    writer.save(0, page(0))
    keys, slot = writer.keys([1]), np.array([0], np.int32)
    assert writer.io.write(0, keys, slot) == [DONE]
    assert reader.io.contains(keys) == [MISSING]
    assert reader.io.read(0, keys, slot) == [MISSING]
    assert not reader.load(0).any()
    writer.close()
    reader.close()


# --- when a part is not there --------------------------------------------------------------------------------------


class Shelf(MemoryStorage):
    """Memory storage in which one object a call can go wrong."""

    def __init__(self) -> None:
        super().__init__(MemoryConfig(), None)  # type: ignore[arg-type]
        self.wrong: dict[int, PageResult] = {}
        self.short = False

    def _answer(self, results: Sequence[PageResult]) -> list[PageResult]:
        answers = [self.wrong.get(at, result) for at, result in enumerate(results)]
        return answers[:-1] if self.short else answers

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        return self._answer(super().read(keys, into))

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        return self._answer(super().write(keys, pages))


@pytest.fixture
def stored() -> Iterator[tuple[Shelf, Engine]]:
    shelf = Shelf()
    engine = Engine(shelf, 2, 4)
    assert engine.io.write(0, engine.keys([1, 2]), IDS) == [DONE] * 2
    yield shelf, engine
    engine.close()


def test_a_page_counts_only_if_all_its_parts_do(stored: tuple[Shelf, Engine]) -> None:
    shelf, engine = stored
    keys = engine.keys([1, 2])
    shelf.wrong = {5: Failed("no"), 6: MISSING}
    assert engine.io.read(0, keys, IDS) == [DONE, Failed("no")]
    assert engine.io.write(0, keys, IDS) == [DONE, Failed("no")]
    shelf.wrong = {3: MISSING}
    assert engine.io.read(0, keys, IDS) == [MISSING, DONE]


def test_a_page_with_a_part_gone_is_not_there(stored: tuple[Shelf, Engine]) -> None:
    shelf, engine = stored
    shelf.delete([engine.keys([2])[0][:32] + engine.groups[0].tags[3]])
    assert engine.io.contains(engine.keys([1, 2])) == [DONE, MISSING]
    assert engine.io.read(0, engine.keys([1, 2]), IDS) == [DONE, MISSING]


def test_b085_a_part_of_another_page_or_place_is_found_out(stored: tuple[Shelf, Engine]) -> None:
    shelf, engine = stored
    tags = engine.groups[0].tags
    (one, other) = (key[:32] for key in engine.keys([1, 2]))
    shelf._pages[one + tags[1]] = shelf._pages[one + tags[2]]
    first, second = engine.io.read(0, engine.keys([1, 2]), IDS)
    assert (first.reason, second) == ("it is another page", DONE)  # type: ignore[union-attr]
    shelf._pages[other + tags[0]] = shelf._pages[one + tags[0]]
    results = engine.io.read(0, engine.keys([1, 2]), IDS)
    assert all(isinstance(result, Failed) for result in results)


def test_answers_of_another_length_are_no_answers(stored: tuple[Shelf, Engine]) -> None:
    shelf, engine = stored
    shelf.short = True
    for call in (engine.io.read, engine.io.write):
        with pytest.raises(Unfit, match="7 results came for 8 pages"):
            call(0, engine.keys([1, 2]), IDS)


def test_groups_of_several_parts_and_of_one_are_asked_for_in_one_call() -> None:
    shelf, latent = Shelf(), GroupSpec("latent", Full(), 64, (2,))
    groups = sharded([full(2), latent], 2)
    arena = Arena.create(groups, PAGE, (PAGES, PAGES))
    io = LocalPageIO(shelf, arena, groups)
    names = count()
    keys = [[next(names).to_bytes(32, "big") + group.tag for _ in IDS] for group in groups]
    assert io.write(0, keys[0], IDS) == io.write(1, keys[1], IDS) == [DONE] * 2
    assert len(shelf._pages) == 6
    mixed = [keys[0][0], keys[1][0], bytes(40), keys[0][1], keys[1][1]]
    assert io.contains(mixed) == [DONE, DONE, MISSING, DONE, DONE]
    arena.close()


def test_the_worst_part_speaks_for_the_page() -> None:
    failed = Failed("x")
    assert together([DONE, DONE]) == DONE
    assert together([DONE, MISSING]) == MISSING
    assert together([MISSING, failed, DONE]) is failed
    assert isinstance(together([DONE]), Done) and isinstance(together([MISSING]), Missing)


def test_a_groups_tag_does_not_depend_on_its_heads() -> None:
    """So that pages of one part, which say nothing of heads, keep their keys."""
    assert replace(full(), heads=1).tag == full().tag
