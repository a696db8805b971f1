import random
from itertools import islice
from types import SimpleNamespace

import pytest

from stepwell.abc.ranked import RankedPolicy
from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.offers import NoConfig
from stepwell.schedule.job import Job
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request


class Latest(SchedulePolicy):
    max_passes = 3

    def order(self, waiting, view):
        return list(reversed(waiting))


class Oldest(Latest):
    def order(self, waiting, view):
        return waiting


class Broken(SchedulePolicy):
    def __init__(self, answer):
        self.answer = answer

    def order(self, waiting, view):
        return self.answer(waiting)


def job(order, priority=0):
    return Job(Request(rid=f"r{order}", namespace=b"", tokens=b"\0\0\0\0", priority=priority), order, float(order))


def queue(policy, jobs):
    faults = []
    made = Queue(policy, faults.append)
    for each in jobs:
        made.add(each)
    return made, faults


VIEW = SimpleNamespace()


def test_fcfs_goes_by_priority_then_arrival():
    jobs = [job(0), job(1, 5), job(2), job(3, 5), job(4, -1)]
    made, faults = queue(Fcfs(NoConfig(), None), jobs)
    assert [each.order for each in made.ordered(VIEW)] == [1, 3, 0, 2, 4]
    assert not faults


def test_a_job_that_comes_back_takes_its_place_by_arrival():
    jobs = [job(0), job(1), job(2)]
    made, _ = queue(Fcfs(NoConfig(), None), jobs)
    made.admitted(jobs[0])
    made.admitted(jobs[1])
    made.add(jobs[1])
    made.add(jobs[0])
    assert list(made) == jobs


def test_a_job_passed_as_often_as_the_bound_says_goes_first():
    first = job(0)
    made, _ = queue(Latest(), [first])
    for order in range(1, 4):
        late = job(order)
        made.add(late)
        assert next(made.ordered(VIEW)) is late
        made.admitted(late)
        assert first.passes == order
    made.add(job(4))
    assert next(made.ordered(VIEW)) is first
    made.remove(first)
    made.add(job(5))
    assert next(made.ordered(VIEW)).order == 5


def test_an_earlier_admission_passes_nobody():
    jobs = [job(order) for order in range(4)]
    made, _ = queue(Latest(), jobs)
    made.admitted(jobs[0])
    made.admitted(jobs[2])
    assert [each.passes for each in made] == [1, 0]


def test_a_broken_order_is_counted_and_arrival_order_is_used():
    jobs = [job(0), job(1), job(2)]
    for answer in (
        lambda waiting: waiting[:2],
        lambda waiting: [waiting[0], waiting[0], waiting[1]],
        lambda waiting: [*waiting, job(9)],
        lambda waiting: None,
        lambda waiting: 1 / 0,
        lambda waiting: waiting.clear(),
        lambda waiting: waiting.pop() and waiting,
    ):
        made, faults = queue(Broken(answer), jobs)
        assert list(made.ordered(VIEW)) == jobs
        assert len(faults) == 1


def test_a_policy_cannot_reorder_the_queue_itself():
    jobs = [job(0), job(1)]
    made, _ = queue(Fcfs(NoConfig(), None), jobs)
    order = made.ordered(VIEW)
    assert next(order) is jobs[0]
    made.admitted(jobs[0])
    assert list(order) == jobs[1:]


def test_an_aging_bound_that_is_no_number_is_counted_and_the_usual_one_holds():
    policy = Latest()
    policy.max_passes = None
    jobs = [job(0), job(1)]
    made, faults = queue(policy, jobs)
    made.admitted(jobs[1])
    assert jobs[0].passes == 1 and faults == ["max_passes is None, which is no number"]


class Longest(RankedPolicy):
    """The longest first, as far as it is told."""

    max_passes = 10**9

    def __init__(self, rank=None, name=None, merge=None):
        self.asked = []
        self.rank = rank or (lambda request: -float(request.length))
        self.name = name or (lambda request: request.priority)
        self.merged = merge

    def place(self, request, view):
        self.asked.append(request)
        return self.name(request), self.rank(request)

    def merge(self, groups, view):
        return self.merged(groups) if self.merged else super().merge(groups, view)


def sized(order, length, priority=0):
    return Job(Request(rid=f"r{order}", namespace=b"", tokens=bytes(4 * length), priority=priority), order, 0.0)


def test_a_kept_order_is_the_one_from_scratch_and_asks_only_about_who_is_new():
    dice = random.Random(3)
    policy, scratch = Longest(), Longest()
    made, faults = queue(policy, [])
    back = []
    for order in range(400):
        made.add(sized(order, dice.randrange(1, 20), dice.randrange(3)))
        if back and dice.random() < 0.3:
            made.add(back.pop())
        if dice.random() < 0.6:
            gone = dice.sample(list(made), min(len(made), dice.choice([1, 1, 5])))
            for each in gone:
                made.remove(each)
            back += gone[:1]
        policy.asked.clear()
        assert list(made.ordered(VIEW)) == list(scratch.order(tuple(made), VIEW))
        assert len(policy.asked) <= 2, "somebody was placed anew for nothing"
    assert not faults


def test_no_more_of_an_order_is_worked_out_than_is_read():
    read = []

    def lazy(groups):
        for request in RankedPolicy.merge(Longest(), groups, VIEW):
            read.append(request)
            yield request

    made, faults = queue(Longest(merge=lazy), [sized(order, 1) for order in range(50)])
    assert len(list(islice(made.ordered(VIEW), 5))) == 5
    assert len(read) == 5

    class Plain(SchedulePolicy):
        def order(self, waiting, view):
            return (read.append(request) or request for request in waiting)

    read.clear()
    made, _ = queue(Plain(), [sized(order, 1) for order in range(50)])
    assert len(list(islice(made.ordered(VIEW), 5))) == 5
    assert len(read) == 5 and not faults


def half_way(groups):
    everybody = [request for group in groups.values() for request in group]
    yield everybody[-1]
    raise RuntimeError("half-way through")


@pytest.mark.parametrize(
    "policy",
    [
        Longest(rank=lambda request: 1 / 0),
        Longest(rank=lambda request: float("nan")),
        Longest(rank=lambda request: (1.0, float("nan"))),
        Longest(rank=lambda request: "late"),
        Longest(rank=lambda request: 1.0 if request.order else (1.0,)),
        Longest(name=lambda request: [request.order]),
        Longest(merge=lambda groups: 1 / 0),
        Longest(merge=lambda groups: None),
        Longest(merge=lambda groups: [job(77)]),
        Longest(merge=lambda groups: iter([None])),
        Longest(merge=lambda groups: iter([])),
    ],
)
def test_a_broken_rank_group_or_merge_is_counted_once_and_all_go_by_arrival(policy):
    jobs = [sized(order, 1 + order) for order in range(4)]
    made, faults = queue(policy, jobs)
    for tries in (1, 2):
        assert list(made.ordered(VIEW)) == jobs
        assert len(faults) == tries


def test_what_was_proposed_before_a_fault_stands_and_the_rest_goes_by_arrival():
    jobs = [sized(order, 1) for order in range(4)]
    repeats = Longest(merge=lambda groups: iter([jobs[3], jobs[1], jobs[3], jobs[0]]))
    for policy, first in ((Longest(merge=half_way), [jobs[3]]), (repeats, [jobs[3], jobs[1]])):
        made, faults = queue(policy, jobs)
        assert list(made.ordered(VIEW)) == [*first, *(each for each in jobs if each not in first)]
        assert len(faults) == 1


def test_one_request_that_cannot_be_placed_keeps_no_other_from_its_place():
    policy = Longest(rank=lambda request: -request.length if request.order != 2 else 1 / 0)
    jobs = [sized(order, 1 + order) for order in range(4)]
    made, faults = queue(policy, jobs)
    assert list(made.ordered(VIEW)) == jobs and len(faults) == 1
    made.remove(jobs[2])
    assert [each.order for each in made.ordered(VIEW)] == [3, 1, 0] and len(faults) == 1


def test_who_leaves_while_an_order_is_read_is_no_fault():
    jobs = [sized(order, 1 + order) for order in range(4)]
    for policy in (Longest(), Latest()):
        made, faults = queue(policy, jobs)
        order = made.ordered(VIEW)
        assert next(order) is jobs[3]
        made.remove(jobs[1])
        made.add(sized(9, 9))
        assert list(order) == [jobs[2], jobs[0]] and not faults
        made.add(jobs[1])
        for each in list(made):
            made.remove(each)


def test_whoever_is_passed_too_often_in_a_pass_is_next_in_it():
    jobs = [job(order) for order in range(9)]
    made, faults = queue(Latest(), jobs)
    tried = []
    for each in made.ordered(VIEW):
        tried.append(each.order)
        made.admitted(each)
    assert tried == [8, 7, 6, 0, 1, 2, 3, 4, 5] and not faults
    assert all(each.passes <= Latest.max_passes for each in jobs)


def test_nobody_goes_past_who_was_tried_in_vain_and_then_passed_too_often():
    jobs = [job(order) for order in range(9)]
    made, faults = queue(Oldest(), jobs)
    tried = []
    for each in made.ordered(VIEW):
        tried.append(each.order)
        if each is not jobs[0]:
            made.admitted(each)
    assert tried == [0, 1, 2, 3] and made.cut and not faults
    assert jobs[0].passes == Oldest.max_passes and next(made.ordered(VIEW)) is jobs[0]


def test_passes_are_those_of_a_plain_count():
    dice = random.Random(5)
    policy = Latest()
    policy.max_passes = 12
    made, _ = queue(policy, [])
    counted, aged, out = {}, set(), []
    for order in range(600):
        fresh = job(order)
        made.add(fresh)
        counted[fresh] = 0
        if out and dice.random() < 0.2:
            made.add(out.pop(dice.randrange(len(out))))
        admitted = dice.sample(list(made), min(len(made), dice.choice([0, 0, 1, 2, 4])))
        for one in admitted:
            made.admitted(one)
            for each in made:
                counted[each] += one.order > each.order
                if one.order > each.order and counted[each] >= policy.max_passes:
                    aged.add(each)
        out += [each for each in admitted if dice.random() < 0.5]
        assert all(each.passes == counted[each] and each.aged == (each in aged) for each in made)
        overdue = [each for each in made if each.aged]
        assert list(islice(made.ordered(VIEW), len(overdue))) == overdue
    assert aged and all(each.passes == counted[each] for each in out)


class Unsayable(Exception):
    def __repr__(self):
        raise RuntimeError("no words")

    __str__ = __repr__


def test_what_a_policy_raises_is_counted_even_where_it_cannot_be_shown():
    def fail(waiting):
        raise Unsayable

    made, faults = queue(Broken(fail), [job(0), job(1)])
    assert [each.order for each in made.ordered(VIEW)] == [0, 1]
    assert faults == ["order raised a Unsayable"]


def test_a_bound_that_raises_is_the_usual_one():
    class Raises(Latest):
        @property
        def max_passes(self):
            raise Unsayable

    jobs = [job(0), job(1)]
    made, faults = queue(Raises(), jobs)
    made.admitted(jobs[1])
    assert jobs[0].passes == 1 and faults == ["max_passes raised a Unsayable"]


def test_nobody_is_asked_to_order_an_empty_queue():
    asked = []
    made, faults = queue(Broken(lambda waiting: asked.append(waiting) or waiting), [job(0)])
    for each in made.ordered(VIEW):
        made.admitted(each)
    assert len(asked) == 1
    assert list(made.ordered(VIEW)) == [] and len(asked) == 1 and not faults
