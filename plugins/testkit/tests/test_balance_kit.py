"""The balance kit passes what is right, and every wrong balancer fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(BalanceKit):
    scenes = 24
    hierarchical = {nodes}

    @pytest.fixture
    def balancer(self):
        return balance.{name}()
"""
WRONG = [
    ("NotDerived", "it_places_experts_in_slots"),
    ("WideNumbers", "it_places_experts_in_slots"),
    ("ForgetsTheColdest", "every_expert_stands_somewhere"),
    ("PacksByLoadAlone", "b095_no_rank_has_an_expert_twice_without_need"),
    ("NeedsTokens", "b096_equal_and_empty_loads_are_no_special_case"),
    ("TiesByChance", "b096_equal_numbers_give_equal_placements"),
    ("TiesByThread", "b096_chance_and_threads_do_not_matter"),
    ("Remembers", "b096_equal_numbers_give_equal_placements"),
    ("ReadsMemory", "b096_equal_numbers_give_equal_placements"),
    ("OneScratch", "b096_chance_and_threads_do_not_matter"),
    ("ScalesTheLoad", "it_leaves_what_it_is_shown"),
    ("SortsTheCurrent", "it_leaves_what_it_is_shown"),
    ("MovesWithin", "what_stays_on_a_rank_stays_in_its_slot"),
    ("AlwaysAnew", "moving_is_never_worse_than_staying"),
    ("ReplicatesInOrder", "a_hot_expert_is_spread"),
    ("TakesWhatItGets", "what_does_not_fit_is_refused_in_a_sentence"),
    ("SaysMore", "what_does_not_fit_is_refused_in_a_sentence"),
]


def source(name: str, nodes: bool = False) -> str:
    return SOURCE.format(name=name, nodes=nodes)


@pytest.mark.parametrize(("name", "nodes"), [("Rounds", False), ("Nodes", True)])
def test_right(failing, name, nodes):
    assert failing(source(name, nodes)) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(source(name), only=test) == {f"test_{test}"}


def test_who_says_that_groups_stay_on_a_node_is_held_to_it(failing):
    test = "test_groups_stay_on_a_node"
    assert failing(source("Rounds", nodes=True), only=test) == {test}
