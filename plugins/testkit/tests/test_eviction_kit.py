"""The eviction kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(EvictionKit):
    @pytest.fixture
    def policy(self):
        return eviction.{name}()
"""
WRONG = [
    ("ProposesRemoved", "a_removed_segment_is_not_proposed"),
    ("EvictsOnProposal", "a_proposal_changes_nothing"),
    ("RotatesOnProposal", "a_proposal_changes_nothing"),
    ("ForgetsTheHit", "fewer_pages_come_back_only_when_there_are_no_more"),
    ("ForgetsReturns", "a_hit_after_removal_makes_a_candidate_again"),
    ("ForgetsExposed", "an_exposed_segment_is_a_candidate_once"),
    ("ListsTwice", "a_second_announcement_adds_nothing"),
    ("RaisesOnSecondRemoval", "a_removal_of_what_was_never_a_candidate_is_no_error"),
    ("ListsTwice", "exposing_what_a_hit_has_listed_lists_it_once"),
    ("ListsTheHead", "a_split_keeps_the_tail_and_adds_no_candidate"),
    ("DropsTheTail", "a_split_keeps_the_tail_and_adds_no_candidate"),
    ("NeedsToKnowTheTail", "a_split_of_what_is_no_candidate_is_no_error"),
    ("RemembersPages", "segments_may_grow_and_shrink"),
    ("StopsAtOne", "it_proposes_until_there_are_pages_enough"),
    ("ProtectsTheLast", "random_lives_keep_to_the_contract"),
    ("RaisesOnSecondRemoval", "a_second_removal_is_no_error"),
    ("Dice", "random_lives_keep_to_the_contract"),
    ("DiceOnce", "equal_calls_give_equal_answers"),
    ("ByAddress", "equal_calls_give_equal_answers"),
    ("SharesItsQueue", "two_policies_share_nothing"),
    ("KeepsGhosts", "removed_segments_are_let_go"),
    ("LooksAtAll", "an_eviction_costs_the_same_among_many_segments"),
    ("HoldsALock", "equal_calls_give_equal_answers"),
]


@pytest.mark.parametrize("name", ["Lru", "Listed"])
def test_right(failing, name):
    assert failing(SOURCE.format(name=name)) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
