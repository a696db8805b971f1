"""The dispatch kit passes what is right, and every wrong dispatcher fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(DispatchKit):
    limit_s = 2.0
    lost_s = 1.8
    {more}

    @pytest.fixture
    def dispatchers(self):
        return dispatch.group(dispatch.{name}{ranks})
"""
CALM = "not a_rank"
"""What loses no rank, and so waits for nothing."""
SCALES = "hidden = 256; tolerance = 0.07"
TORCH = """
torch = pytest.importorskip("torch")

class Through(dispatch.Queues):
    def dispatch_start(self, tokens, experts, weights):
        assert tokens.dtype is torch.bfloat16
        return super().dispatch_start(tokens.float().numpy(), experts.numpy(), weights.numpy())
    def dispatch_finish(self, handle):
        got = super().dispatch_finish(handle)
        return replace(got, tokens=torch.from_numpy(got.tokens).bfloat16(), counts=torch.from_numpy(got.counts))
    def combine_start(self, outputs, dispatched):
        return super().combine_start(outputs.float().numpy(), dispatched)
    def combine_finish(self, handle):
        return torch.from_numpy(super().combine_finish(handle)).bfloat16()

class TestSubject(DispatchKit):
    dtype = "bfloat16"
    tolerance = 0.02
    adapter = TorchAdapter()

    @pytest.fixture
    def dispatchers(self):
        return dispatch.group(Through)
"""
WORLD = """
class TestSubject(DispatchKit):
    @pytest.fixture
    def world(self):
        return Threads(dispatch.group(dispatch.Queues), 10.0)
"""
PROCESSES = """
from kit_subjects import pipes

@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Processes(pipes.{name}, 3, tmp_path_factory.mktemp("meet"), limit_s={limit}) as processes:
        yield processes

class TestSubject(DispatchKit):
    @pytest.fixture
    def world(self, processes):
        return processes.renewed()

    experts = 9
"""
WRONG = [
    ("NotSorted", "tokens_arrive_as_the_format_says"),
    ("NoWeights", "sums_equal_a_plain_loop"),
    ("MinusOneIsLast", "an_expert_of_minus_one_is_nowhere"),
    ("OnlyFirstChoice", "sums_equal_a_plain_loop"),
    ("IdleRankStaysAway", "b114_ranks_without_tokens_take_part"),
    ("EmptyIsAnError", "b114_ranks_without_tokens_take_part"),
    ("SmallCapacity", "b119_all_tokens_go_to_one_expert"),
    ("OneExpertMore", "tokens_arrive_as_the_format_says"),
    ("GuessedRows", "counts_are_of_tokens_and_rows_agree_with_them"),
    ("SumsUnfilled", "sums_equal_a_plain_loop"),
    ("FillsFromTheEnd", "tokens_arrive_as_the_format_says"),
    ("GlobalNumbers", "tokens_arrive_as_the_format_says"),
    ("WeighsTwice", "sums_equal_a_plain_loop"),
    ("GivesOutputsBack", "sums_are_the_callers_to_keep"),
    ("NoLimit", "b113_a_token_too_many_is_refused_before_anything_is_sent"),
    ("RefusesLate", "b113_a_token_too_many_is_refused_before_anything_is_sent"),
    ("RefusesLate", "b118_one_batch_too_many_is_refused_at_once"),
    ("RefusesWithoutNumbers", "b113_a_token_too_many_is_refused_before_anything_is_sent"),
    ("TakesEverMore", "b118_one_batch_too_many_is_refused_at_once"),
    ("InOrderOfArrival", "b118_batches_in_flight_keep_apart"),
    ("OneBuffer", "b118_batches_in_flight_keep_apart"),
    ("OrderOfTheDay", "sums_are_the_same_bits_whatever_else_is_in_flight"),
    ("SendsWhatItWasLent", "sums_are_the_callers_to_keep"),
    ("OneSum", "sums_are_the_callers_to_keep"),
    ("PicksTooSmall", "what_is_picked_for_a_step_does_its_dispatches"),
    ("PicksNothing", "what_is_picked_for_a_step_does_its_dispatches"),
    ("RanksDiffer", "they_are_dispatchers_that_agree"),
    ("RaisesOnClose", "close_is_idempotent_and_waits_for_nobody"),
    ("ClosesTogether", "close_is_idempotent_and_waits_for_nobody"),
    ("ClosesOnlyWhatIsOpen", "what_was_never_opened_closes"),
    ("Hangs", "b113_a_full_batch_and_one_token_less"),
    ("WaitsForEver", "a_rank_that_stays_away_is_noticed"),
    ("TriesAgain", "a_rank_that_stays_away_is_noticed"),
    ("DoesWithout", "a_rank_that_comes_too_late_is_told"),
    ("SaysTimeout", "a_rank_that_stays_away_is_noticed"),
]

ENDLESS = ("Hangs", "WaitsForEver", "IdleRankStaysAway", "ClosesTogether")
"""Those that are found by the time they take."""


def source(name: str, more: str = "", ranks: str = "") -> str:
    return SOURCE.format(name=name, more=more, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_right_with_any_number_of_ranks(failing, ranks):
    assert failing(source("Queues", ranks=f", ranks={ranks}"), only=CALM) == set()


@pytest.mark.parametrize("name", ["Masked", "Once", "Auto"])
def test_right_in_each_format(failing, name):
    assert failing(source(name), only=CALM) == set()


def test_right_where_ranks_are_lost(failing):
    assert failing(source("Queues", "limit_s = 20.0; lost_s = 10.0")) == set()


def test_right_with_scales(failing):
    assert failing(source("Scaled", SCALES), only=CALM) == set()


def test_right_with_torch_tensors(failing):
    pytest.importorskip("torch")
    assert failing("from dataclasses import replace\n" + TORCH, only=CALM) == set()


def test_right_in_a_world_of_its_own(failing):
    assert failing(WORLD, only="sums or arrive") == set()


def test_right_where_ranks_are_processes(failing):
    assert failing(PROCESSES.format(name="Files", limit=20), only="sums or refused or too_late or killed") == set()


def test_an_error_of_a_process_is_one_of_the_test(failing):
    test = "test_sums_equal_a_plain_loop"
    assert failing(PROCESSES.format(name="Ends", limit=20), only=test) == {test}


def test_a_killed_process_has_to_be_noticed(failing):
    test = "test_a_rank_that_was_killed_is_noticed"
    assert failing(PROCESSES.format(name="WaitsForEver", limit=1), only=test) == {test}


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    more = "limit_s = 0.7" if name in ENDLESS else ""
    assert failing(source(name, more), only=test) == {f"test_{test}"}


def test_wrong_scales(failing):
    test = "test_scales_are_of_each_run_of_numbers"
    assert failing(source("OneScaleAToken", SCALES), only=test) == {test}


def test_only_the_device_notices(failing):
    assert failing(source("WaitsForEver", "notices_lost = False"), only="a_rank") == set()
