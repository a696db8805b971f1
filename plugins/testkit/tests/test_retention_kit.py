"""The retention kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(RetentionKit):
    @pytest.fixture
    def policy(self):
        return retention.{name}()
"""
WRONG = [
    ("NotDerived", "it_is_a_retention_policy"),
    ("Yields", "it_answers_with_lengths"),
    ("Divides", "it_answers_with_lengths"),
    ("ForgetsThePage", "its_lengths_are_whole_pages"),
    ("ForgetsThePageOfAPrompt", "its_lengths_are_whole_pages"),
    ("AnswersAPromptBeyondItsEnd", "at_the_end_its_lengths_are_on_the_path"),
    ("KnowsOnePage", "its_lengths_are_whole_pages"),
    ("RoundsUp", "at_the_end_its_lengths_are_on_the_path"),
    ("GoesBelow", "at_the_end_its_lengths_are_on_the_path"),
    ("BeginsAtTheStart", "along_the_way_its_lengths_are_of_the_piece"),
    ("PassesTheEnd", "along_the_way_its_lengths_are_of_the_piece"),
    ("HoldsAPage", "of_less_than_a_page_nothing_stays"),
    ("NeedsABranch", "a_path_without_branches_is_no_error"),
    ("EverySecond", "it_is_pure"),
    ("RemembersBranches", "it_is_pure"),
    ("TakesBranchesAway", "it_leaves_branches_as_they_were"),
    ("SaysItAgain", "no_more_stay_than_there_are"),
    ("WalksFromTheRoot", "a_piece_costs_the_same_far_down_a_path"),
    ("LooksAtAllForEach", "a_path_costs_no_more_than_its_length"),
    ("ComparesAll", "a_path_costs_no_more_than_its_length"),
]


@pytest.mark.parametrize("name", ["Ends", "Nothing", "Everything"])
def test_right(failing, name):
    assert failing(SOURCE.format(name=name)) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
