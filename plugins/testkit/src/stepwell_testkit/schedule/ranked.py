"""Orders that are told request by request: places that stand, and groups that are kept."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from stepwell import Groups, Prefix, RankedPolicy, RunningView, SchedulePolicy, WaitingView
from stepwell.abc.ranked import placed
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.queues import batch_of, hits_of, odd_of, queue_of, request_of, whole
from stepwell_testkit.schedule.views import KitView


class Ranked(Kit):
    """What holds for a `RankedPolicy`; skipped for other policies."""

    @pytest.fixture
    def ranked(self, policy: SchedulePolicy) -> RankedPolicy:
        """The policy, if it is one."""
        if not isinstance(policy, RankedPolicy):
            pytest.skip("is no RankedPolicy")
        return policy

    @pytest.mark.parametrize("seed", range(3))
    def test_ranked_places_can_be_compared(self, ranked: RankedPolicy, seed: int) -> None:
        dice = random.Random(seed)
        waiting, view = queue_of(dice, 60)
        odd = odd_of(dice, 30, ranked.max_passes)
        places = [placed(ranked.place(request, view)) for request in [*waiting, *odd]]
        ranks = [rank for _, rank in places]
        assert len({hash(name) for name, _ in places}) > 0
        if any(isinstance(rank, tuple) for rank in ranks):
            assert all(isinstance(rank, tuple) for rank in ranks), "some ranks are tuples and some are not"
        numbers = [number for rank in ranks for number in (rank if isinstance(rank, tuple) else (rank,))]
        for number in numbers:
            assert isinstance(number, (int, float)), f"{number!r} in a rank is no number"
            assert number == number, "a rank is not a number (nan): it compares with nothing"
        assert sorted(ranks) == sorted(ranks[::-1])

    @pytest.mark.parametrize("seed", range(3))
    def test_ranked_a_place_depends_on_the_request_alone(self, ranked: RankedPolicy, seed: int) -> None:
        """Core asks again only when the request comes back to the queue or what is cached of it has changed."""
        dice = random.Random(seed)
        waiting, view = queue_of(dice, 30)
        fresh = copy.deepcopy(ranked)
        for request in waiting:
            first = ranked.place(request, view)
            assert ranked.place(request, view) == first, "asked twice, it says another place"
            other = Elsewhere(view, dice)
            assert ranked.place(request, other) == first, "time, who runs or what is expected makes another place"
        whole(ranked.order(waiting, view))
        for request in reversed(waiting):
            assert ranked.place(request, view) == fresh.place(request, view), "it matters who has been placed before"
            passed = replace(request, passes=request.passes + 7)  # type: ignore[type-var]
            assert ranked.place(passed, view) == ranked.place(request, view), "passes, which core counts, move it"

    @pytest.mark.parametrize("seed", range(3))
    def test_ranked_a_place_asks_only_what_it_declares(self, ranked: RankedPolicy, seed: int) -> None:
        waiting, view = queue_of(random.Random(seed), 30)
        assert isinstance(ranked.probes, bool)
        for request in waiting:
            asked = Overheard(view, request, ranked.probes)
            ranked.place(request, asked)

    @pytest.mark.parametrize("size", [0, 1, 2, 70])
    def test_ranked_merge_holds_each_once_and_keeps_each_group_in_its_order(
        self, ranked: RankedPolicy, size: int
    ) -> None:
        waiting, view = queue_of(random.Random(size), size)
        groups = Groups()
        for request in waiting:
            groups.put(request, *placed(ranked.place(request, view)))
        merged = whole(ranked.merge(groups, view))
        assert sorted(request.order for request in merged) == list(range(size))
        for name, group in groups.items():
            mine = {request.order for request in group}
            inside = [request.order for request in merged if request.order in mine]
            assert inside == [request.order for request in group], f"group {name!r} is out of its own order"
        again = whole(ranked.merge(groups, view))
        assert list(map(id, again)) == list(map(id, merged)), "asked twice, it merges otherwise"

    @pytest.mark.parametrize("seed", range(6))
    def test_ranked_groups_that_are_kept_give_the_order_from_scratch(self, ranked: RankedPolicy, seed: int) -> None:
        """Requests come, go and come back, the cache changes, time passes; a policy may skip none of it.

        What is told from scratch is a new policy, or, if it remembers, one that was told all the same before.
        """
        dice = random.Random(seed)
        kept = Keeper(copy.deepcopy(ranked))
        for turn in range(120):
            for _ in range(dice.choice([1, 1, 1, 5])):
                kept.change(dice, turn)
            other = copy.deepcopy(kept.policy if ranked.remembers else ranked)
            scratch = other.order(list(kept.waiting), kept.view)
            assert _orders(kept.order()) == _orders(scratch), f"after {turn + 1} turns"

    def test_ranked_is_in_the_same_order_for_whoever_keeps_the_groups(self, ranked: RankedPolicy) -> None:
        """What it remembers of one set of groups it does not take for what it is told of another."""
        dice = random.Random(9)
        one, other = Keeper(ranked), Keeper(ranked)
        for turn in range(40):
            for kept in dice.sample([one, other], 2):
                kept.change(dice, turn)
                scratch = copy.deepcopy(ranked).order(list(kept.waiting), kept.view)
                assert _orders(kept.order()) == _orders(scratch)


class Keeper:
    """Keeps groups for a policy as core does: asks for a place where something of a request has changed."""

    def __init__(self, policy: RankedPolicy) -> None:
        self.policy = policy
        self.waiting: list[WaitingView] = []
        self.view = KitView()
        self._groups = Groups()
        self._left: list[WaitingView] = []
        self._count = 0

    def order(self) -> Iterable[WaitingView]:
        """The order of now."""
        return self.policy.merge(self._groups, self.view)

    def change(self, dice: random.Random, turn: int) -> None:
        """Something happens."""
        match dice.randrange(10):
            case 0 | 1 | 2:
                self._join(request_of(dice, self._count, turn))
                self._count += 1
            case 3 | 4 if self.waiting:
                gone = self.waiting.pop(dice.randrange(len(self.waiting)))
                self._groups.discard(gone)
                self._left.append(gone)
            case 5 if self._left:
                back = self._left.pop(dice.randrange(len(self._left)))
                self._join(replace(back, length=back.length + 16, retractions=1))  # type: ignore[type-var]
            case 6:
                self._look_again(replace(self.view, hits=hits_of(dice, self.waiting), tree={}))
            case 7:
                few = dice.sample(self.waiting, min(3, len(self.waiting)))
                self._look_again(replace(self.view, hits={**self.view.hits, **hits_of(dice, few)}))
            case 8 if self.view.tree:
                self._look_again(self.view.cut(dice.choice(list(self.view.tree.values()))))
            case _:
                self.view.now = float(turn)
                self.view.running = batch_of(dice, dice.randrange(6), first=10_000 + 10 * turn)

    def _look_again(self, view: KitView) -> None:
        """The cache is another now: who is answered something else about itself gets another place."""
        before, self.view = self.view, view
        for request in self.waiting if self.policy.probes else ():
            if _answers(before, request) != _answers(view, request):
                self._groups.put(request, *placed(self.policy.place(request, view)))

    def _join(self, request: WaitingView) -> None:
        self.waiting.append(request)
        self.waiting.sort(key=lambda one: one.order)
        self._groups.put(request, *placed(self.policy.place(request, self.view)))


@dataclass
class Overheard:
    """A view that lets ask only what `place` may."""

    view: KitView
    of: WaitingView
    probes: bool
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.view.version

    @property
    def now(self) -> float:
        """Not for `place`."""
        raise AssertionError("place asks for the time, which belongs into merge")

    @property
    def running(self) -> list[RunningView]:
        """Not for `place`."""
        raise AssertionError("place asks who runs, which belongs into merge")

    def expected(self, request: WaitingView) -> float:
        """Not for `place`."""
        raise AssertionError("place asks what is expected, which belongs into merge")

    def cached(self, request: WaitingView) -> int:
        """Where the policy probes, of the request that is placed."""
        self._heard(request)
        return self.view.cached(request)

    def prefix(self, request: WaitingView) -> Prefix | None:
        """Where the policy probes, of the request that is placed."""
        self._heard(request)
        return self.view.prefix(request)

    def _heard(self, request: WaitingView) -> None:
        assert self.probes, "place asks what is cached, but the policy does not declare `probes`"
        assert request is self.of, "place asks about another request"


class Elsewhere:
    """The same cache at another time, with others running."""

    def __init__(self, view: KitView, dice: random.Random) -> None:
        self._view = view
        self.version = view.version
        self.now = view.now + dice.randrange(1, 10**6)
        self.running = batch_of(dice, dice.randrange(8))
        self._more = dice.randrange(1, 100)

    def cached(self, request: WaitingView) -> int:
        """As at home."""
        return self._view.cached(request)

    def prefix(self, request: WaitingView) -> Prefix | None:
        """As at home."""
        return self._view.prefix(request)

    def expected(self, request: WaitingView) -> float:
        """More than at home."""
        return self._view.expected(request) + self._more


def _answers(view: KitView, request: WaitingView) -> tuple[int, Prefix | None]:
    return view.cached(request), view.prefix(request)


def _orders(requests: Iterable[WaitingView]) -> list[int]:
    return [request.order for request in whole(requests)]
