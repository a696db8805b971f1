"""The route kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(RouteKit):
    @pytest.fixture
    def policy(self):
        return route.{name}()
"""
BUILT_IN = """
from stepwell.builtin.routers import CacheAware, LeastLoaded, RoundRobin, Sticky

class TestBuiltIn(RouteKit):
    @pytest.fixture(params=[CacheAware, LeastLoaded, RoundRobin, Sticky])
    def policy(self, request):
        return request.param()
"""
WRONG = [
    ("SaysTheName", "it_chooses_one_of_the_replicas"),
    ("CountsFromOne", "it_chooses_one_of_the_replicas"),
    ("NeedsAKey", "it_chooses_one_of_the_replicas"),
    ("RollsDice", "it_is_pure"),
    ("TakesTurns", "it_is_pure"),
    ("SortsThem", "it_leaves_what_it_is_shown"),
    ("ByPlace", "it_chooses_a_replica_not_a_place"),
    ("AlwaysTheSame", "it_leaves_no_replica_idle_while_others_drown"),
    ("OnlyTheCache", "a_prefix_that_all_share_draws_not_everything_to_one"),
]


def test_right(failing):
    assert failing(SOURCE.format(name="Least")) == set()


def test_built_in(failing):
    assert failing(BUILT_IN) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
