"""The dispatch kit passes what is right, and every wrong dispatcher fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(DispatchKit):
    limit_s = 1.0

    @pytest.fixture
    def dispatchers(self):
        return dispatch.group(dispatch.{name}{sizes})
"""
TORCH = """
torch = pytest.importorskip("torch")

class Torch:
    def give(self, array):
        return torch.from_numpy(array.copy())

    def take(self, tensor):
        return tensor.numpy().copy()

class Through(Dispatcher):
    def __init__(self, inner):
        self.inner = inner
    def dispatch_start(self, tokens, experts):
        return self.inner.dispatch_start(tokens.numpy(), experts.numpy())
    def dispatch_finish(self, handle):
        got = self.inner.dispatch_finish(handle)
        return Dispatched(torch.from_numpy(got.tokens), torch.from_numpy(got.counts), got.state)
    def combine_start(self, outputs, dispatched, weights):
        return self.inner.combine_start(outputs.numpy(), dispatched, weights.numpy())
    def combine_finish(self, handle):
        return torch.from_numpy(self.inner.combine_finish(handle))

class TestSubject(DispatchKit):
    adapter = Torch()

    @pytest.fixture
    def dispatchers(self):
        return [Through(each) for each in dispatch.group(dispatch.Queues)]
"""
WORLD = """
class TestSubject(DispatchKit):
    @pytest.fixture
    def world(self):
        return Threads(dispatch.group(dispatch.Queues), 10.0)
"""
WRONG = [
    ("InOrderOfArrival", "b118_two_batches_in_flight_keep_apart"),
    ("NotSorted", "tokens_arrive_sorted_by_local_expert"),
    ("NoWeights", "sums_equal_a_plain_loop"),
    ("MinusOneIsLast", "an_expert_of_minus_one_is_nowhere"),
    ("OnlyFirstChoice", "sums_equal_a_plain_loop"),
    ("IdleRankStaysAway", "b114_ranks_without_tokens_take_part"),
    ("EmptyIsAnError", "b114_ranks_without_tokens_take_part"),
    ("SmallCapacity", "b119_all_tokens_go_to_one_expert"),
    ("OneExpertMore", "tokens_arrive_sorted_by_local_expert"),
    ("OneBuffer", "b118_two_batches_in_flight_keep_apart"),
    ("SendsWhatItWasLent", "rounds_follow_each_other"),
    ("Hangs", "b113_a_full_batch_and_one_token_less"),
    ("RaisesOnClose", "close_is_the_last_call"),
]


@pytest.mark.parametrize("sizes", ["", ", ranks=1", ", ranks=2", ", ranks=8"])
def test_right(failing, sizes):
    assert failing(SOURCE.format(name="Queues", sizes=sizes)) == set()


def test_right_with_torch_tensors(failing):
    pytest.importorskip("torch")
    assert failing(TORCH, only="sums or b114 or b118") == set()


def test_right_in_a_world_of_its_own(failing):
    assert failing(WORLD, only="sums or arrive") == set()


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name, sizes=""), only=test) == {f"test_{test}"}
