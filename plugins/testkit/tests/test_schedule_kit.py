"""The schedule kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(ScheduleKit):
    @pytest.fixture
    def policy(self):
        return schedule.{name}()
"""
WRONG = [
    ("Drops", "the_order_holds_each_request_once"),
    ("Repeats", "the_order_holds_each_request_once"),
    ("RepeatsForAnother", "the_order_holds_each_request_once"),
    ("SortsInPlace", "it_is_pure"),
    ("GivesCopies", "the_order_holds_each_request_once"),
    ("Starves", "its_aging_bound_is_a_number_that_stays"),
    ("StarvesByDegrees", "its_aging_bound_is_a_number_that_stays"),
    ("NoBound", "its_aging_bound_is_a_number_that_stays"),
    ("TiesByName", "equals_keep_their_order_of_arrival"),
    ("TiesReversed", "equals_keep_their_order_of_arrival"),
    ("Shuffles", "it_is_pure"),
    ("Remembers", "it_follows_what_the_cache_holds_now"),
    ("RefusesEmpty", "an_empty_queue_has_an_empty_order"),
    ("NeedsAKey", "nothing_about_a_request_makes_it_raise"),
    ("DividesByCached", "nothing_about_a_request_makes_it_raise"),
    ("FallsBackToNothing", "equals_keep_their_order_of_arrival"),
    ("NoVictim", "the_victim_is_one_that_runs"),
    ("DiceVictim", "the_victim_is_one_that_runs"),
]


@pytest.mark.parametrize("name", ["Longest", "Fcfs"])
def test_right(failing, name):
    assert failing(SOURCE.format(name=name)) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
