from types import SimpleNamespace

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
    made.admitted([jobs[0], jobs[1]])
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
        made.admitted([late])
        assert first.passes == order
    made.add(job(4))
    assert next(made.ordered(VIEW)) is first
    made.remove(first)
    made.add(job(5))
    assert next(made.ordered(VIEW)).order == 5


def test_an_earlier_admission_passes_nobody():
    jobs = [job(order) for order in range(4)]
    made, _ = queue(Latest(), jobs)
    made.admitted([jobs[0], jobs[2]])
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
    made.admitted([jobs[0]])
    assert list(order) == jobs[1:]


def test_an_aging_bound_that_is_no_number_is_counted_and_the_usual_one_holds():
    policy = Latest()
    policy.max_passes = None
    jobs = [job(0), job(1)]
    made, faults = queue(policy, jobs)
    made.admitted(jobs[1:])
    assert jobs[0].passes == 1 and faults == ["max_passes is None, which is no number"]
