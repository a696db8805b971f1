"""What the schedule kit is made of: the view's tree, who keeps groups, and the little core."""

from __future__ import annotations

import random

import pytest

from stepwell import RankedPolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.offers import NoConfig
from stepwell_testkit import KitRequest, KitRunning, KitView
from stepwell_testkit.schedule.little import MAX_RETRACTIONS, Job, LittleCore
from stepwell_testkit.schedule.ranked import Keeper


def path(prefix):
    """Tokens of a prefix and of all above it, the shortest first."""
    return [*path(prefix.parent), prefix.tokens] if prefix else []


def test_requests_of_one_branch_share_what_both_have_cached():
    long, short, other, cold = (
        KitRequest(order, name) for order, name in enumerate(["long", "short", "other", "cold"])
    )
    view = KitView({"long": 100, "short": 32, "other": 100}, branches={"long": 5, "short": 5, "other": 1})
    assert path(view.prefix(long)) == [16, 32, 64, 100]
    assert view.prefix(short) is view.prefix(long).parent.parent
    assert view.prefix(other) is not view.prefix(long)
    assert view.prefix(other).parent.parent is view.prefix(short), "5 and 1 part at the third bit from the end"
    assert view.prefix(long) is view.prefix(long)
    assert view.prefix(cold) is None


def test_a_cut_prefix_keeps_its_name_and_gets_a_parent_in_a_later_view():
    request = KitRequest(0, "r")
    view = KitView({"r": 64})
    prefix = view.prefix(request)
    later = view.cut(prefix)
    assert later.version > view.version
    assert later.prefix(request) is prefix
    assert path(prefix) == [16, 32, 48, 64]


def test_what_is_expected_is_all_that_may_come_unless_it_is_said():
    view = KitView(expects={"known": 2.5})
    assert view.expected(KitRequest(0, "a", max_new=30)) == 30
    assert view.expected(KitRunning(1, "b", max_new=30, generated=12)) == 18
    assert view.expected(KitRequest(2, "known")) == 2.5


def test_probes_are_counted():
    view = KitView({"a": 16})
    for _ in range(3):
        view.cached(KitRequest(0, "a"))
        view.prefix(KitRequest(0, "a"))
    assert view.asked == 6


class Told(Fcfs):
    """Takes down for whom it is asked."""

    probes = True

    def __init__(self):
        self.asked = []

    def place(self, request, view):
        self.asked.append(request.order)
        return None, -view.cached(request)


def test_the_keeper_asks_anew_only_where_an_answer_is_another():
    policy, dice = Told(), random.Random(3)
    kept = Keeper(policy)
    while len(kept.waiting) < 30:
        kept.change(dice, 0)
    policy.asked.clear()
    before, view = len(kept.waiting), kept.view
    kept._look_again(KitView({**view.hits, kept.waiting[4].rid: 9999}, tree=view.tree, branches=view.branches))
    assert policy.asked == [kept.waiting[4].order]
    assert len(list(kept.order())) == before and next(iter(kept.order())) is kept.waiting[4]


# --- the little core -----------------------------------------------------------------------------------------------


class Pushy(RankedPolicy):
    """Whoever waits may push out whoever runs."""

    def place(self, request, view):
        return None, 0

    def preempt(self, request, running, view):
        return list(running)


def test_nobody_gives_way_in_the_little_core_more_often_than_may_be():
    core = LittleCore(Pushy(), pages=8, slots=1)
    jobs = [Job(order, str(order), length=32, max_new=40) for order in range(4)]
    for job in jobs:
        core.arrive(job)
    for _ in range(400):
        core.step()
    assert max(job.retractions for job in jobs) == MAX_RETRACTIONS
    assert not core.waiting and not core.running


def test_pages_run_out_in_the_little_core_and_the_victim_goes():
    core = LittleCore(Fcfs(NoConfig(), None), pages=9)
    first, second = Job(0, "first", length=32, max_new=60), Job(1, "second", length=32, max_new=60)
    core.arrive(first)
    core.arrive(second)
    while not second.retractions:
        core.step()
        assert core.free >= 0
    assert core.running == [first] and core.waiting == [second] and not second.pages
    generated = second.generated
    while core.running or core.waiting:
        core.step()
    assert generated > 0 and second.generated == 60


@pytest.mark.parametrize("answer", [KitRunning(7), None])
def test_a_victim_that_was_not_asked_about_fails_in_the_little_core(answer):
    class Elsewhere(Fcfs):
        def victim(self, running, view):
            return answer

    core = LittleCore(Elsewhere(NoConfig(), None), pages=9)
    for order in range(2):
        core.arrive(Job(order, str(order), length=32, max_new=60))
    with pytest.raises(AssertionError, match=r"victim names .* not among those it was asked about"):
        for _ in range(100):
            core.step()


def test_who_was_passed_to_the_bound_goes_next_in_the_little_core():
    class Latest(Fcfs):
        max_passes = 2

        def place(self, request, view):
            return None, -request.order

    core = LittleCore(Latest(NoConfig(), None), pages=99, slots=1)
    order = []
    for at in range(6):
        core.arrive(Job(at, str(at)))
    while core.waiting:
        order.append(core.admit().order)
        core.running.clear()
    assert order == [5, 4, 0, 1, 2, 3]
