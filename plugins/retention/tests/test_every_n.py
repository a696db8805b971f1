"""A window every so many tokens."""

import pytest

from stepwell_retention import EveryN, EveryNConfig
from stepwell_testkit import RetentionKit


class TestEveryN(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return EveryN(EveryNConfig(), context)


class TestEveryToken(RetentionKit):
    @pytest.fixture
    def policy(self, context):
        return EveryN(EveryNConfig(tokens=1), context)


def along(tokens, *piece):
    start, end, page = piece
    return list(EveryN(EveryNConfig(tokens), None).along(start, end, page, []))


def test_multiples_of_the_distance_stay():
    assert along(2048, 0, 8192, 16) == [2048, 4096, 6144, 8192]
    assert along(2048, 2048, 4096, 16) == [4096]
    assert along(2048, 2064, 4080, 16) == []


def test_they_are_counted_from_the_start_of_the_prompt():
    whole = along(100, 0, 1024, 16)
    assert [at for start in range(0, 1024, 64) for at in along(100, start, start + 64, 16)] == whole


@pytest.mark.parametrize(("tokens", "page", "apart"), [(100, 16, 112), (112, 16, 112), (1, 64, 64), (65, 64, 128)])
def test_a_distance_is_rounded_up_to_pages(tokens, page, apart):
    assert along(tokens, 0, 4 * apart, page) == [apart, 2 * apart, 3 * apart, 4 * apart]


def test_at_the_end_it_keeps_what_tail_keeps():
    policy = EveryN(EveryNConfig(), None)
    assert list(policy.keep(8200, 16, [512])) == [8192]
    assert sorted(policy.keep(8192, 16, [])) == [8176, 8192]


def test_a_distance_of_nothing_is_refused():
    with pytest.raises(ValueError, match="tokens: 0 is less than 1"):
        EveryNConfig(tokens=0)
