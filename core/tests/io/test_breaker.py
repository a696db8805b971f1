"""The breaker as a table of what happens when."""

from stepwell.engine.breaker import Breaker, State


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker(failures=3, pause_s=10, longest_s=60)
    for _ in range(3):
        assert breaker.allow(now)
        breaker.failed(now)
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(failures=3)
    for _ in range(10):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.state is State.CLOSED
    assert tripped().state is State.OPEN


def test_it_lets_one_call_try_after_the_pause_and_closes_when_that_works() -> None:
    breaker = tripped()
    assert not breaker.allow(9.9)
    assert breaker.allow(10)
    assert breaker.state is State.HALF_OPEN
    assert not breaker.allow(10.1)
    breaker.succeeded()
    assert breaker.state is State.CLOSED and breaker.allow(10.2)


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = tripped(), 0.0, []
    for _ in range(6):
        begin = now
        while not breaker.allow(now):
            now += 1
        pauses.append(now - begin)
        breaker.failed(now)
    assert pauses == [10, 20, 40, 60, 60, 60]
    assert breaker.opened == 7


def test_a_trial_that_never_returns_does_not_block_for_ever() -> None:
    breaker = tripped()
    assert breaker.allow(10)
    assert not breaker.allow(69)
    assert breaker.allow(71)


def test_late_failures_of_earlier_calls_do_not_prolong_the_pause() -> None:
    breaker = tripped()
    breaker.failed(9)
    assert breaker.allow(10)
