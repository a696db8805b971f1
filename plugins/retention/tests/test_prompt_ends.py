"""The window at the end of each prompt."""

import pytest

from stepwell_retention import BranchPoints, BranchPointsConfig, PromptEnds
from stepwell_testkit import RetentionKit


class TestPromptEnds(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return PromptEnds(None, context)


class TestBranchPointsAndPromptEnds(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return BranchPoints(BranchPointsConfig(prompts=True), context)


@pytest.mark.parametrize(("length", "kept"), [(1, []), (16, []), (17, [16]), (100, [96]), (96, [80]), (97, [96])])
def test_what_the_same_prompt_can_use_again_stays(length, kept):
    assert list(PromptEnds().prompted(length, 16)) == kept


def test_of_the_answer_stays_what_tail_keeps():
    assert list(PromptEnds().keep(100, 16, [32])) == [96]


def test_branch_points_keep_them_where_asked_to():
    assert list(BranchPoints(BranchPointsConfig(prompts=True), None).prompted(100, 16)) == [96]
    assert list(BranchPoints(BranchPointsConfig(), None).prompted(100, 16)) == []
