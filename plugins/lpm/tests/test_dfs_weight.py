"""Heaviest branch first, and every order of the package kept instead of made anew."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

import pytest

from stepwell import Groups, RankedPolicy, SchedulePolicy, WaitingView
from stepwell_lpm import (
    DfsWeight,
    DfsWeightConfig,
    Lpm,
    LpmConfig,
    ShortestPrefillFirst,
    ShortestPrefillFirstConfig,
    stepwell_schedulers,
)
from stepwell_testkit import ScheduleKit


class TestDfsWeight(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return DfsWeight(DfsWeightConfig(), context)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the queue, or a prompt under way."""

    order: int
    rid: str = ""
    arrival: float = 0.0
    length: int = 4096
    max_new: int = 16
    priority: int = 0
    routing_key: str | None = None
    tenant: str | None = None
    passes: int = 0
    retractions: int = 0
    generated: int = 0
    pages: int = 4
    unplanned: int = 0


@dataclass(eq=False)
class Stem:
    """A cached prefix (a `stepwell.Prefix`)."""

    parent: Stem | None = None


@dataclass
class World:
    """What a policy may ask (a `stepwell.ScheduleView`)."""

    hits: dict[int, int] = field(default_factory=dict)
    """Cached tokens, by rank of arrival."""
    stems: dict[int, Stem] = field(default_factory=dict)
    running: Sequence[Ask] = ()
    now: float = 0.0
    version: int = 0
    asked: int = 0

    def cached(self, request: WaitingView) -> int:
        self.asked += 1
        return self.hits.get(request.order, 0)

    def prefix(self, request: WaitingView) -> Stem | None:
        self.asked += 1
        return self.stems.get(request.order)

    def expected(self, request: WaitingView) -> float:
        return request.max_new


class Kept:
    """Keeps the groups of a ranked policy as core does: a request is placed when it comes and when it has changed."""

    def __init__(self, policy: RankedPolicy, world: World) -> None:
        self.policy = policy
        self.world = world
        self.groups = Groups()
        self.waiting: dict[int, Ask] = {}

    def put(self, *requests: Ask) -> None:
        for request in requests:
            self.waiting[request.order] = request
            self.groups.put(request, *self.policy.place(request, self.world))

    def drop(self, order: int) -> None:
        self.groups.discard(self.waiting.pop(order))

    def order(self) -> list[int]:
        return [request.order for request in self.policy.merge(self.groups, self.world)]

    def first(self, number: int) -> list[int]:
        """What a pass that looks at so many sees; the rest is not worked out."""
        return [request.order for request in islice(self.policy.merge(self.groups, self.world), number)]


def scratch(policy: SchedulePolicy, waiting: Sequence[Ask], world: World) -> list[int]:
    return [request.order for request in policy.order(sorted(waiting, key=lambda ask: ask.order), world)]


@pytest.fixture
def policy(context) -> SchedulePolicy:
    offer = next(offer for offer in stepwell_schedulers() if offer.name == "dfs-weight")
    return offer.make(offer.config(), context)


def test_the_heaviest_branch_goes_first_and_a_node_after_its_branches(policy):
    root, light, heavy = Stem(), Stem(), Stem()
    deep = Stem(heavy)
    stems = {0: root, 1: light, 2: heavy, 3: deep, 4: deep, 5: heavy, 6: light, 8: deep}
    waiting = [Ask(at) for at in range(9)]
    assert scratch(policy, waiting, World(stems=stems)) == [3, 4, 8, 2, 5, 1, 6, 0, 7]


def test_equal_branches_go_by_their_oldest(policy):
    one, other = Stem(), Stem()
    waiting = [Ask(at) for at in range(4)]
    assert scratch(policy, waiting, World(stems={0: other, 1: one, 2: one, 3: other})) == [0, 3, 1, 2]


def test_priority_goes_before_weight(policy):
    heavy = Stem()
    waiting = [Ask(0), Ask(1), Ask(2, priority=1)]
    assert scratch(policy, waiting, World(stems={0: heavy, 1: heavy})) == [2, 0, 1]


def test_a_branch_that_was_cut_in_two_counts_for_its_new_half(policy):
    trunk, rival = Stem(), Stem()
    world = World(stems={0: rival, 1: rival, 2: trunk})
    kept = Kept(policy, world)
    kept.put(Ask(0), Ask(1), Ask(2))
    assert kept.order() == [0, 1, 2]
    trunk.parent = Stem()
    world.version += 1
    world.stems |= {3: trunk.parent, 4: trunk.parent}
    kept.put(Ask(3), Ask(4))
    assert kept.order() == [2, 3, 4, 0, 1]


def test_a_pass_follows_only_the_branches_that_it_reads(policy):
    stems = [Stem() for _ in range(2_000)]
    kept = Kept(policy, World(stems=dict(enumerate(stems))))
    kept.put(*(Ask(at) for at in range(2_000)))
    assert kept.first(3) == [0, 1, 2]
    asked = kept.world.asked
    kept.drop(0)
    kept.put(Ask(2_000))
    assert kept.first(3) == [1, 2, 3]
    assert kept.world.asked == asked + 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("make", "config"),
    [
        (DfsWeight, DfsWeightConfig()),
        (Lpm, LpmConfig(granularity=16, wait_tokens=3.0)),
        (ShortestPrefillFirst, ShortestPrefillFirstConfig(output_weight=0.5)),
    ],
)
def test_what_is_kept_is_what_it_would_be_from_scratch(make, config, seed):
    worlds = list(churn(make(config, None), make(config, None), random.Random(seed)))
    assert worlds[-1].version > 30


@pytest.mark.parametrize(("bound", "said"), [(-1, "-1 is less than 0"), (2**30, ".* is more than can be meant")])
def test_a_bound_that_makes_no_sense_is_refused(bound, said):
    with pytest.raises(ValueError, match=f"max_passes: {said}"):
        DfsWeightConfig(max_passes=bound)


def churn(policy: RankedPolicy, fresh: SchedulePolicy, dice: random.Random, steps: int = 150) -> Iterator[World]:
    """Requests come and go, caches fill, split and empty; what is kept is each time what it would be from scratch."""
    world = World()
    kept, orders, stems = Kept(policy, world), count(), [Stem() for _ in range(3)]
    for _ in range(steps):
        world.now += dice.random()
        for _ in range(dice.randrange(3)):
            request = Ask(next(orders), arrival=world.now, length=dice.randint(1, 999), priority=dice.choice([0, 0, 1]))
            world.hits[request.order] = dice.randrange(request.length)
            if dice.random() < 0.8:
                world.stems[request.order] = dice.choice(stems)
            kept.put(request)
        if kept.waiting and dice.random() < 0.4:
            kept.drop(dice.choice([*kept.first(3), *kept.waiting]))
        if dice.random() < 0.5:
            _change(world, kept, stems, dice)
        assert kept.order() == scratch(fresh, list(kept.waiting.values()), world)
        yield world


def _change(world: World, kept: Kept, stems: list[Stem], dice: random.Random) -> None:
    world.version += 1
    stem = dice.choice(stems)
    on_it = [order for order, at in world.stems.items() if at is stem and order in kept.waiting]
    match dice.choice(["grow", "split", "evict"]):
        case "grow":  # some go on along a new branch
            stems.append(Stem(stem))
            moved = dice.sample(on_it, len(on_it) // 2)
            world.stems.update(dict.fromkeys(moved, stems[-1]))
        case "split":  # a node is cut in two, and some end in its upper half
            stem.parent = Stem(stem.parent)
            stems.append(stem.parent)
            moved = dice.sample(on_it, len(on_it) // 3)
            world.stems.update(dict.fromkeys(moved, stem.parent))
        case "evict" if stem.parent is not None and all(at.parent is not stem for at in stems):
            stems.remove(stem)
            moved = on_it
            world.stems.update(dict.fromkeys([order for order, at in world.stems.items() if at is stem], stem.parent))
        case _:
            moved = []
    for order in moved:
        world.hits[order] = dice.randrange(kept.waiting[order].length)
    kept.put(*(kept.waiting[order] for order in moved))
