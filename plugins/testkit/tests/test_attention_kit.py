"""The kit of attention passes what is right, and every wrong one fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(PagedAttentionKit):
    provides = frozenset({{Capability.GRAPH_SAFE}})

    @pytest.fixture
    def attention(self):
        return attention.{name}()
"""
LOOP, KINDS = "answers_equal_a_plain_loop", "kinds_of_layers_are_planned_beside_each_other"
LAST = "graphs_take_as_many_rows_as_they_have_and_compute_what_was_planned_last"
WRONG = [
    ("NoSoftcap", LOOP),
    ("NoSinks", LOOP),
    ("NoScale", LOOP),
    ("LongWindow", LOOP),
    ("SeesTheNext", "layers_of_a_step_share_its_plan"),
    ("MissesItself", LOOP),
    ("OnePlanForAll", KINDS),
    ("KeepsWhatItWasLent", "layers_of_a_step_share_its_plan"),
    ("PlansOnce", LAST),
    ("RefusesAll", "it_is_attention_that_does_something"),
    ("RefusesWithoutAWord", "it_is_attention_that_does_something"),
    ("RaisesOnClose", "close_is_the_last_call"),
]


def test_right(failing):
    assert failing(SOURCE.format(name="Attention")) == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}
