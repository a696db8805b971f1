"""Every window, and that all policies are offered by their names."""

import pytest

from stepwell_retention import All, stepwell_retainers
from stepwell_testkit import RetentionKit


class TestAll(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return All(None, context)


def test_every_page_multiple_stays():
    policy = All()
    assert list(policy.along(0, 64, 16, [])) == [16, 32, 48, 64]
    assert list(policy.along(64, 96, 16, [80])) == [80, 96]
    assert list(policy.keep(70, 16, [])) == [64]


def test_policies_by_name():
    made = {offer.name: offer.make(offer.config(), None) for offer in stepwell_retainers()}
    assert {name: type(policy).__name__ for name, policy in made.items()} == {
        "branch-points": "BranchPoints",
        "prompt-ends": "PromptEnds",
        "every-n": "EveryN",
        "all": "All",
    }
