"""The write kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(WriteKit):
    @pytest.fixture
    def policy(self):
        return write.{name}()
"""
WRONG = [
    ("SaysTrue", "it_decides_on_every_edge_cause_and_use"),
    ("ForgetsACause", "it_decides_on_every_edge_cause_and_use"),
    ("RaisesOnMany", "it_decides_on_every_edge_cause_and_use"),
    ("EverySecond", "it_is_pure"),
    ("CopiesOnce", "more_uses_never_withdraw_a_copy"),
    ("WithdrawsWhenHot", "more_uses_never_withdraw_a_copy"),
    ("PercentReserve", "its_reserve_is_a_share"),
    ("GrowingReserve", "its_reserve_stays"),
]


def test_right(failing):
    assert failing(SOURCE.format(name="Selective")) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
