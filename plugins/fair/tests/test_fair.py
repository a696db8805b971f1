"""Priority, shares of tenants, response ratio, and who gives way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import count, islice

import pytest

from stepwell import Groups, SchedulePolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.offers import NoConfig
from stepwell_fair import FairConfig, stepwell_schedulers, turns
from stepwell_fair import fair as made
from stepwell_testkit import KitRequest, KitRunning, KitView


@pytest.fixture
def policy(context) -> SchedulePolicy:
    (offer,) = stepwell_schedulers()
    assert offer.name == "fair"
    return offer.make(offer.config(), context)


def fair(**settings):
    return made(FairConfig(**settings), None)


def queue(tenants: str, **changes):
    """A request for each letter; `-` has no tenant. All are of one size."""
    return [KitRequest(at, rid=f"r{at}", tenant=t.strip("-") or None, **changes) for at, t in enumerate(tenants)]


def order(policy, waiting, running=(), now=0.0):
    return [request.order for request in policy.order(waiting, KitView(running=running, now=now))]


# region: the order


def test_tenants_alternate_whoever_came_first(policy):
    assert order(policy, queue("aaaabb-")) == [0, 4, 6, 1, 5, 2, 3]


def test_who_has_been_served_less_goes_first(policy):
    running = [KitRunning(100, tenant="a", length=500, generated=20), KitRunning(101, tenant="b", length=300)]
    assert order(policy, queue("abcab"), running) == [2, 1, 4, 0, 3]


def test_only_what_was_computed_of_a_prompt_counts(policy):
    running = [KitRunning(100, tenant="a", length=9_000, unplanned=8_900), KitRunning(101, tenant="b", length=300)]
    assert order(policy, queue("ba"), running) == [1, 0]


def test_what_was_cached_of_a_prompt_does_not_count(policy):
    waiting = [KitRequest(0, rid="r0", tenant="a", length=9_000), *queue("cba")[1:]]
    order(policy, waiting, now=-1.0)
    assert policy.admit(waiting[0], KitView({"r0": 8_900}, now=0.0))
    running = [KitRunning(0, tenant="a", length=9_000), KitRunning(101, tenant="b", length=300)]
    assert order(policy, waiting[1:], running) == [2, 1]


def test_who_only_says_whether_others_are_admitted_remembers_none_of_them(policy):
    """As `[schedule.admit]` of choices it is never asked for an order, nor told of anybody's end."""
    for request in queue("abc" * 10):
        assert policy.admit(request, KitView())
    assert not policy._service._tabs


def test_a_weight_makes_a_tenant_count_for_several():
    policy = fair(weights={"gold": 4})
    waiting = [KitRequest(at, tenant="gold" if at >= 10 else "tin") for at in range(20)]
    first = order(policy, waiting)[:10]
    assert sum(at >= 10 for at in first) == 8


def test_priority_goes_before_shares(policy):
    waiting = [*queue("bb"), KitRequest(2, tenant="a", priority=1), KitRequest(3, tenant="a", priority=1)]
    assert order(policy, waiting, [KitRunning(100, tenant="a", length=10**6)]) == [2, 3, 0, 1]


def test_waiting_makes_more_urgent_where_it_is_set():
    waiting = [KitRequest(0, arrival=0.0), KitRequest(1, arrival=15.0, priority=1), KitRequest(2, arrival=15.0)]
    assert order(fair(), waiting, now=25.0) == [1, 0, 2]
    assert order(fair(age_s=10.0), waiting, now=25.0) == [0, 1, 2]
    assert order(fair(age_s=26.0), waiting, now=25.0) == [1, 0, 2]


def test_what_a_tenant_gets_in_one_priority_counts_in_another():
    waiting = [
        KitRequest(0, arrival=0.0, tenant="a"),
        KitRequest(1, arrival=20.0, tenant="a", priority=1),
        KitRequest(2, arrival=20.0, tenant="b", priority=1),
    ]
    assert order(fair(age_s=20.0), waiting, now=25.0) == [0, 2, 1]


def test_a_short_request_goes_before_a_long_one_until_that_has_waited_for_its_length(policy):
    long, short = KitRequest(0, length=10_000, arrival=0.0), KitRequest(1, length=100, arrival=90.0)
    assert order(policy, [long, short], now=95.0) == [1, 0]
    assert order(policy, [long, replace(short, arrival=94.9)], now=95.0) == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_kept_groups_and_orders_from_scratch_agree_for_who_has_seen_the_same(seed):
    dice = random.Random(seed)
    settings = {"memory_s": 20.0, "age_s": 15.0, "weights": {"a": 3}}
    kept, scratch, groups = fair(**settings), fair(**settings), Groups()
    waiting: dict[int, KitRequest] = {}
    running: list[KitRunning] = []
    for step in range(300):
        now = step / 3
        new = KitRequest(
            step,
            arrival=now,
            length=dice.randint(1, 2_000),
            priority=dice.choice([0, 0, 1]),
            tenant=dice.choice([None, *"abcdef"]),
        )
        waiting[step] = new
        groups.put(new, *kept.place(new, KitView()))
        running = [replace(one, generated=one.generated + 7) for one in running if dice.random() < 0.9]
        view = KitView(running=running, now=now)
        first = [request.order for request in kept.merge(groups, view)]
        assert first == [request.order for request in scratch.order(list(waiting.values()), view)]
        for at in first[: dice.choice([0, 1, 1, 2])]:
            groups.discard(waiting[at])
            gone = waiting.pop(at)
            running.append(KitRunning(at, length=gone.length, priority=gone.priority, tenant=gone.tenant))


def test_a_pass_looks_at_what_it_reads_however_many_tenants_wait(monkeypatch):
    looks = []
    monkeypatch.setattr(turns, "urgency", lambda request, *rest: looks.append(request) or request.priority)
    policy, groups = fair(), Groups()
    for at in range(3_000):
        request = KitRequest(at, tenant=f"t{at % 1_000}", length=100)
        groups.put(request, *policy.place(request, KitView()))

    class Counted(KitView):
        asked_for = 0

        def expected(self, request):
            self.asked_for += 1
            return 16.0

    view = Counted(running=[KitRunning(9_000, tenant="t0")], now=1.0)
    assert [request.order for request in islice(policy.merge(groups, view), 4)] == [1, 2, 3, 4]
    assert view.asked_for == 3
    assert len(looks) <= 6


# endregion

# region: shares over time


@dataclass
class Shop:
    """Places that are always contested: a token a step for each that runs, a prompt in one step."""

    policy: SchedulePolicy
    places: int = 8
    now: float = 0.0
    waiting: list[KitRequest] = field(default_factory=list)
    running: list[KitRunning] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    _orders: count = field(default_factory=count)

    def ask(self, tenant: str, length: int, max_new: int) -> None:
        self.waiting.append(KitRequest(next(self._orders), "", self.now, length, max_new, tenant=tenant))

    def step(self) -> None:
        self.now += 1.0
        while len(self.running) < self.places and self.waiting:
            view = KitView(running=self.running, now=self.now)
            one = next(iter(self.policy.order(self.waiting, view)))
            assert not self.running or self.policy.admit(one, view)
            self.waiting.remove(one)
            self._count(one.tenant, one.length)
            self.running.append(KitRunning(one.order, "", one.arrival, one.length, one.max_new, tenant=one.tenant))
        for one in self.running:
            self._count(one.tenant, 1)
        self.running = [replace(one, generated=one.generated + 1) for one in self.running]
        self.running = [one for one in self.running if one.generated < one.max_new]

    def _count(self, tenant: str, tokens: int) -> None:
        self.served[tenant] = self.served.get(tenant, 0) + tokens


def flooded(policy, steps=600, size=(100, 20), other=(100, 20)) -> Shop:
    """One tenant asks for everything at once, another keeps eight requests in the queue."""
    shop = Shop(policy)
    for _ in range(400):
        shop.ask("flood", *size)
    for _ in range(steps):
        while sum(one.tenant == "calm" for one in shop.waiting) < shop.places:
            shop.ask("calm", *other)
        shop.step()
    assert any(one.tenant == "flood" for one in shop.waiting)
    return shop


def share(shop: Shop, tenant: str) -> float:
    return shop.served[tenant] / sum(shop.served.values())


def test_a_flood_does_not_take_more_than_its_share():
    assert share(flooded(Fcfs(NoConfig(), None)), "flood") > 0.8
    assert share(flooded(fair()), "flood") == pytest.approx(0.5, abs=0.03)


def test_shares_are_of_tokens_not_of_requests():
    shop = flooded(fair(), size=(50, 10), other=(400, 60))
    assert share(shop, "calm") == pytest.approx(0.5, abs=0.05)


def test_shares_follow_weights():
    shop = flooded(fair(weights={"calm": 3}))
    assert share(shop, "calm") == pytest.approx(0.75, abs=0.04)


def test_who_was_idle_is_ahead_for_a_while_only():
    """After an hour alone, the other's claim is what fits into the memory, not the hour."""
    shop = Shop(fair(memory_s=60.0))
    for _ in range(3_600):
        while len(shop.waiting) < 8:
            shop.ask("busy", 100, 20)
        shop.step()
    before = dict(shop.served)
    for _ in range(1_200):
        for tenant in ("busy", "late"):
            while sum(one.tenant == tenant for one in shop.waiting) < 8:
                shop.ask(tenant, 100, 20)
        shop.step()
    busy, late = shop.served["busy"] - before["busy"], shop.served["late"]
    assert late / (busy + late) == pytest.approx(0.5, abs=0.06)


def test_what_has_run_counts_and_fades():
    policy = fair(memory_s=10.0)
    waiting = queue("ab")
    assert order(policy, waiting, [KitRunning(100, tenant="a", length=800)], now=1.0) == [1, 0]
    assert order(policy, waiting, now=2.0) == [1, 0]
    other = [KitRunning(101, tenant="b", length=100)]
    assert order(policy, waiting, other, now=12.0) == [1, 0]
    other = [KitRunning(101, tenant="b", length=100, generated=60)]
    assert order(policy, waiting, other, now=42.0) == [0, 1]


def test_who_gave_way_is_not_charged_twice_for_what_it_generated():
    policy = fair(memory_s=1e6)
    waiting = queue("ab")
    order(policy, waiting, [KitRunning(100, tenant="a", length=100, generated=300)], now=1.0)
    order(policy, waiting, now=2.0)
    back = KitRunning(100, tenant="a", length=400, generated=300, retractions=1, unplanned=400)
    other = KitRunning(101, tenant="b", length=450)
    assert order(policy, waiting, [back, other], now=3.0) == [0, 1]


# endregion

# region: who gives way


def runs(*priorities, **changes):
    return [KitRunning(100 + at, priority=priority, **changes) for at, priority in enumerate(priorities)]


def names(policy, request, running):
    return [one.order for one in policy.preempt(request, running, KitView(running=running))]


def test_least_urgent_then_newest_give_way_to_a_request_that_is_urgent_enough(policy):
    running = runs(0, 5, -3, 0, 1)
    assert names(policy, KitRequest(0, priority=10), running) == [102, 103, 100]
    assert names(policy, KitRequest(0, priority=7), running) == [102]
    assert names(policy, KitRequest(0, priority=6), running) == []


def test_nobody_gives_way_where_that_is_off():
    policy = fair(preempt_over=0)
    assert names(policy, KitRequest(0, priority=1_000), runs(0, 0)) == []
    assert type(policy).preempt is SchedulePolicy.preempt, "core would ask in vain"


def test_urgency_gained_by_waiting_pushes_nobody_out():
    assert names(fair(age_s=1.0, preempt_over=1), KitRequest(0, arrival=0.0), runs(0, 0)) == []


def test_the_victim_is_least_urgent_then_of_the_tenant_served_most_then_newest(policy):
    def victim(*running):
        return policy.victim(running, KitView(running=running)).order

    a, b = {"tenant": "a", "length": 500}, {"tenant": "b", "length": 300}
    assert victim(KitRunning(1, **a), KitRunning(2, **b), KitRunning(3, **a), KitRunning(4, **b)) == 3
    assert victim(KitRunning(1, **a), KitRunning(2, **b), KitRunning(3, **b)) == 3
    assert victim(KitRunning(1, **a), KitRunning(2, priority=-1, **b), KitRunning(3, **a)) == 2


def test_urgent_prompts_come_first_but_the_oldest_keeps_a_quarter(policy):
    prompts = [KitRunning(1, unplanned=5_000), KitRunning(2, unplanned=900), KitRunning(3, priority=1, unplanned=700)]
    assert list(policy.chunks(prompts, 1_000, KitView())) == [300, 0, 700]
    assert list(policy.chunks(prompts, 800, KitView())) == [200, 0, 600]
    assert list(policy.chunks(prompts, 10_000, KitView())) == [5_000, 900, 700]
    assert list(policy.chunks([], 100, KitView())) == []


# endregion


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_passes": -1}, "max_passes: -1 is less than 0"),
        ({"preempt_over": -1}, "preempt_over: -1 is less than 0"),
        ({"age_s": -1.0}, "age_s: -1.0 is less than 0"),
        ({"memory_s": float("nan")}, "memory_s: nan is no number"),
        ({"memory_s": 1e308}, "memory_s: 1e\\+308 is more than can be meant"),
        ({"memory_s": 1e-308}, "memory_s: 1e-308 is less than can be meant; 0 is none at all"),
        ({"age_s": 1e-300}, "age_s: 1e-300 is less than can be meant"),
        ({"preempt_over": 2**63}, "preempt_over: .* is more than can be meant"),
        ({"weights": {"gold": 0}}, "weights: gold = 0 is less than 7.45"),
        ({"weights": {"gold": 1e-308}}, "weights: gold = 1e-308 is less than"),
        ({"weights": {"gold": float("inf")}}, "weights: gold = inf is more than can be meant"),
        ({"weights": {"gold": float("nan")}}, "weights: gold = nan is no number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        FairConfig(**settings)
