"""Groups hold what was put into them, in order, whether it came one by one or many at once."""

import random
from types import SimpleNamespace

import pytest

from stepwell.abc.ranked import Groups, RankedPolicy
from stepwell.schedule.job import Job
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request


def request(order):
    return SimpleNamespace(order=order)


@pytest.mark.parametrize("many", [1, 3, 40])
@pytest.mark.parametrize("rank", [float, lambda number: (number % 3, float(number))])
def test_groups_are_sorted_and_tell_what_changed(many, rank):
    dice = random.Random(many)
    groups, places, requests = Groups(), {}, [request(order) for order in range(150)]
    for _ in range(200):
        chosen = dice.sample(requests, many)
        gone = [each for each in chosen if dice.random() < 0.3]
        come = [(each, dice.randrange(4), rank(dice.randrange(9))) for each in chosen if each not in gone]
        before = {name: list(group) for name, group in groups.items()}
        groups.update(come, gone)
        for each in gone:
            places.pop(each.order, None)
        places.update((each.order, (name, rank)) for each, name, rank in come)
        now = {name: list(group) for name, group in groups.items()}
        assert now == {
            name: sorted(
                (each for each in requests if places.get(each.order, (None,))[0] == name),
                key=lambda each: (places[each.order][1], each.order),
            )
            for name in {name for name, _ in places.values()}
        }
        assert {name for name in {*before, *now} if before.get(name) != now.get(name)} <= groups.news()
        assert not groups.news()
        assert all(groups.holds(each) == (each.order in places) for each in requests)
        assert all(len(group) == len(list(group)) and group.first is next(iter(group)) for group in groups.values())


def test_a_request_put_where_it_is_already_is_no_news():
    groups, one = Groups(), request(1)
    groups.put(one, "a", 2.0)
    assert groups.news() == {"a"}
    groups.put(one, "a", 2.0)
    assert groups.news() == set()
    groups.put(one, "b", 2.0)
    assert groups.news() == {"a", "b"} and list(groups) == ["b"]
    groups.discard(one)
    groups.discard(one)
    assert groups.news() == {"b"} and not groups


@pytest.mark.parametrize("answer", [None, 5, (1, 2, 3), ()])
def test_a_place_that_is_no_group_and_rank_is_said_to_be_none(answer):
    class Placeless(RankedPolicy):
        def place(self, request, view):
            return answer

    faults = []
    waiting = Queue(Placeless(), faults.append)
    for order in range(3):
        waiting.add(Job(Request(rid=f"r{order}", namespace=b"", tokens=b"\0\0\0\0"), order, float(order)))
    assert [each.order for each in waiting.ordered(SimpleNamespace())] == [0, 1, 2], "by arrival, then"
    said = f"place has to answer (group, rank), not {answer}"
    assert len(faults) == 1 and said in faults[0]
    with pytest.raises(TypeError) as raised:
        Placeless().order(list(waiting), SimpleNamespace())
    assert str(raised.value) == said
