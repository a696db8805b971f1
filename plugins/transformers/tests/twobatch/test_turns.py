"""Two functions on one thread: who goes on when, and what is left when one of them fails."""

from __future__ import annotations

import gc
import threading
import weakref
from contextvars import ContextVar

import pytest
import torch

from stepwell_transformers.twobatch.turns import Turns

SEEN: ContextVar[str] = ContextVar("SEEN", default="outside")


def worker(turns, name, log, count):
    def work():
        for at in range(count):
            log.append(f"{name}{at}")
            turns.turn()
        log.append(f"{name} ends")
        return name * count

    return work


def test_they_alternate_and_the_first_is_ahead():
    turns, log = Turns(), []
    assert turns.run(worker(turns, "a", log, 3), worker(turns, "b", log, 3)) == ("aaa", "bbb")
    assert log == ["a0", "b0", "a1", "b1", "a2", "b2", "a ends", "b ends"]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 3), (3, 0), (1, 4), (4, 1)])
def test_one_that_has_ended_is_waited_for_no_more(first, second):
    turns, log = Turns(), []
    assert turns.run(worker(turns, "a", log, first), worker(turns, "b", log, second)) == ("a" * first, "b" * second)
    assert log.index("a ends") < len(log)


def test_a_turn_without_another_half_is_none():
    turns = Turns()
    turns.turn()
    assert turns.run(lambda: 1, lambda: 2) == (1, 2)
    turns.turn()


def test_each_has_its_own_context_variables_and_the_mode_that_was_entered_outside():
    turns, seen = Turns(), []
    SEEN.set("entered")

    def work(name):
        seen.append(SEEN.get())
        SEEN.set(name)
        turns.turn()
        seen.append(SEEN.get())
        assert torch.is_inference_mode_enabled()
        return torch.ones(1).is_inference()

    with torch.inference_mode():
        assert turns.run(lambda: work("a"), lambda: work("b")) == (True, True)
    assert seen == ["entered", "entered", "a", "b"]
    assert SEEN.get() == "entered"


def test_a_mode_entered_by_a_half_is_not_handed_over():
    turns = Turns()

    def work():
        with torch.no_grad():
            turns.turn()

    with pytest.raises(RuntimeError, match="mode of its own"):
        turns.run(work, lambda: None)
    assert torch.is_grad_enabled()


class Held:
    """Something whose end can be seen."""


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("bad", ["a", "b"])
def test_where_one_fails_the_other_unwinds_and_nothing_is_left(bad, turn):
    """At each turn of either."""
    turns, unwound, held = Turns(), [], []

    def work(name):
        own = Held()
        held.append(weakref.ref(own))
        try:
            for at in range(4):
                if name == bad and at == turn:
                    raise ValueError(f"{name}{at}")
                turns.turn()
            if name == bad and turn == 4:
                raise ValueError(f"{name}4")
        finally:
            unwound.append(name)
            if name != bad:
                turns.turn()  # to nobody
        return own

    with pytest.raises(ValueError, match=f"{bad}{turn}"):
        turns.run(lambda: work("a"), lambda: work("b"))
    assert sorted(unwound) == (["a", "b"] if (bad, turn) != ("a", 0) else ["a"])
    gc.collect()
    assert not any(ref() for ref in held)
    assert turns.run(lambda: 1, lambda: 2) == (1, 2)


def test_what_the_other_raises_while_it_ends_does_not_hide_the_fault():
    turns = Turns()

    def waits():
        try:
            turns.turn()
        finally:
            raise KeyError("unwinding")

    def fails():
        raise ValueError("the fault")

    with pytest.raises(ValueError, match="the fault"):
        turns.run(waits, fails)


def test_a_pair_within_a_pair_is_refused():
    turns = Turns()
    with pytest.raises(RuntimeError, match="under way already"):
        turns.run(lambda: turns.run(int, int), lambda: 0)


def test_threads_have_pairs_of_their_own():
    found = {}

    def rank(number):
        turns, log = Turns(), []
        turns.run(worker(turns, "a", log, 50), worker(turns, "b", log, 50))
        found[number] = log

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
