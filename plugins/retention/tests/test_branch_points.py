"""The windows where paths part."""

import pytest

from stepwell_retention import BranchPoints, BranchPointsConfig
from stepwell_testkit import RetentionKit


class TestBranchPoints(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return BranchPoints(BranchPointsConfig(), context)


class TestOneBranchPoint(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return BranchPoints(BranchPointsConfig(most=1), context)


@pytest.fixture
def policy():
    return BranchPoints(BranchPointsConfig(most=3), None)


def test_at_the_end_branches_stay_and_what_tail_keeps(policy):
    assert sorted(policy.keep(100, 16, [16, 48])) == [16, 48, 96]
    assert sorted(policy.keep(96, 16, [16, 48])) == [16, 48, 80, 96]
    assert policy.keep(15, 16, []) == []


def test_on_the_way_the_place_where_a_path_was_left_stays(policy):
    assert policy.along(1024, 2048, 16, [1600]) == [1600]
    assert policy.along(1024, 2048, 16, []) == []


def test_the_start_of_a_piece_is_not_part_of_it_and_its_end_is(policy):
    assert policy.along(1024, 2048, 16, [1024, 2048]) == [2048]


def test_a_path_keeps_its_deepest_branches(policy):
    assert sorted(policy.keep(100, 16, [16, 32, 48, 64, 80])) == [48, 64, 80, 96]
    assert policy.along(0, 96, 16, [16, 32, 48, 64]) == [32, 48, 64]


def test_a_bound_of_none_is_refused():
    with pytest.raises(ValueError, match="most: 0 is less than 1"):
        BranchPointsConfig(most=0)
