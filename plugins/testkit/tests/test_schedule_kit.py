"""The schedule kit passes what is right, and every wrong policy fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
class TestSubject(ScheduleKit):
    @pytest.fixture
    def policy(self):
        return {name}()
"""
RIGHT = ["schedule.Longest", "schedule.Fcfs", "ranked.Urgent", "ranked.Busiest", "ranked.Shortest", "deciding.Deciding"]
WRONG = [
    # --- the order ---
    ("schedule.Drops", "the_order_holds_each_request_once"),
    ("schedule.Repeats", "the_order_holds_each_request_once"),
    ("schedule.RepeatsForAnother", "the_order_holds_each_request_once"),
    ("schedule.SortsInPlace", "it_is_pure"),
    ("schedule.GivesCopies", "the_order_holds_each_request_once"),
    ("schedule.ReadsOnce", "an_order_that_is_read_in_part_is_the_same_next_time"),
    ("schedule.Starves", "its_aging_bound_is_a_number_that_stays"),
    ("schedule.StarvesByDegrees", "its_aging_bound_is_a_number_that_stays"),
    ("schedule.NoBound", "its_aging_bound_is_a_number_that_stays"),
    ("schedule.TiesByName", "equals_keep_their_order_of_arrival"),
    ("schedule.TiesReversed", "equals_keep_their_order_of_arrival"),
    ("schedule.Shuffles", "it_is_pure"),
    ("schedule.Remembers", "it_follows_what_the_cache_holds_now"),
    ("schedule.RefusesEmpty", "an_empty_queue_has_an_empty_order"),
    ("schedule.NeedsAKey", "nothing_about_a_request_makes_it_raise"),
    ("schedule.DividesByCached", "nothing_about_a_request_makes_it_raise"),
    ("schedule.FallsBackToNothing", "equals_keep_their_order_of_arrival"),
    # --- the other decisions ---
    ("deciding.HoldsBackAll", "admit_lets_somebody_go_while_others_still_run"),
    ("deciding.OneOfATenant", "admit_lets_somebody_go_while_others_still_run"),
    ("deciding.AdmitsByHalves", "admit_says_yes_or_no_and_the_same_again"),
    ("deciding.AdmitsEverySecond", "admit_says_yes_or_no_and_the_same_again"),
    ("deciding.LooksPastAll", "look_past_ends_and_never_begins_again"),
    ("deciding.LooksAgain", "look_past_ends_and_never_begins_again"),
    ("deciding.LooksPastNothing", "look_past_ends_and_never_begins_again"),
    ("deciding.PreemptsWhoIsProtected", "preempt_names_who_runs_once_each"),
    ("deciding.PreemptsTwice", "preempt_names_who_runs_once_each"),
    ("deciding.PreemptsTheLatest", "preempt_names_who_runs_once_each"),
    ("deciding.PreemptsEquals", "who_gave_way_does_not_push_back"),
    ("deciding.PreemptsEquals", "preemption_comes_to_rest"),
    ("deciding.PreemptsByWork", "who_gave_way_does_not_push_back"),
    ("deciding.PreemptsInACircle", "preemption_comes_to_rest"),
    ("schedule.NoVictim", "the_victim_is_one_that_runs"),
    ("schedule.DiceVictim", "the_victim_is_one_that_runs"),
    ("deciding.VictimIsProtected", "the_victim_is_one_that_runs"),
    ("deciding.VictimOfYesterday", "everybody_ends_in_a_pool_that_is_too_small"),
    ("deciding.ForgetsThePromptsThatGetNothing", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.GivesEachTheBudget", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.GivesMoreThanIsLeft", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.TakesBack", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.GivesShares", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.SaysWho", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.DicesShares", "chunks_keep_to_the_budget_and_the_prompts"),
    ("deciding.ShortestChunkFirst", "the_oldest_prompt_ends_however_many_short_ones_come"),
    # --- places and groups ---
    ("ranked.PlacesNowhere", "ranked_places_can_be_compared"),
    ("ranked.PlacesNowhere", "ranked_merge_holds_each_once_and_keeps_each_group_in_its_order"),
    ("ranked.PlacesByTime", "ranked_a_place_depends_on_the_request_alone"),
    ("ranked.PlacesByTime", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.PlacesByWhoRuns", "ranked_a_place_depends_on_the_request_alone"),
    ("ranked.PlacesByWhoRuns", "ranked_a_place_asks_only_what_it_declares"),
    ("ranked.PlacesByWhatIsExpected", "ranked_a_place_depends_on_the_request_alone"),
    ("ranked.PlacesByPasses", "ranked_a_place_depends_on_the_request_alone"),
    ("ranked.PlacesByTurn", "ranked_a_place_depends_on_the_request_alone"),
    ("ranked.ProbesUnsaid", "ranked_a_place_asks_only_what_it_declares"),
    ("ranked.ProbesUnsaid", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.ProbesAnother", "ranked_a_place_asks_only_what_it_declares"),
    ("ranked.MixedRanks", "ranked_places_can_be_compared"),
    ("ranked.NoNumber", "ranked_places_can_be_compared"),
    ("ranked.RanksByName", "ranked_places_can_be_compared"),
    ("ranked.MergesOnlyTheFirst", "ranked_merge_holds_each_once_and_keeps_each_group_in_its_order"),
    ("ranked.TurnsAGroup", "ranked_merge_holds_each_once_and_keeps_each_group_in_its_order"),
    ("ranked.MergesByAge", "ranked_merge_holds_each_once_and_keeps_each_group_in_its_order"),
    ("ranked.RemembersTheMerge", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.ForgetsWhoWent", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.NoNews", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.NewsOfOneForAnother", "ranked_is_in_the_same_order_for_whoever_keeps_the_groups"),
    ("ranked.OrdersOtherwise", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.FallsBackInLongQueues", "ranked_groups_that_are_kept_give_the_order_from_scratch"),
    ("ranked.MergesLatecomers", "equals_keep_their_order_of_arrival"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right(failing, name):
    assert failing(SOURCE.format(name=name)) == set()


@pytest.mark.parametrize("name", ["schedule.Idle", "schedule.Endless", "deciding.PreemptsWithoutEnd"])
def test_one_that_answers_nothing_or_without_end_fails_and_holds_up_no_test(failing, name):
    assert failing(SOURCE.format(name=name))


@pytest.mark.parametrize(("name", "test"), WRONG)
def test_wrong(failing, name, test):
    assert failing(SOURCE.format(name=name), only=test) == {f"test_{test}"}


def test_a_place_that_is_none_is_said_to_be_none(run_class):
    told = run_class(SOURCE.format(name="ranked.PlacesNowhere")).stdout.str()
    assert "TypeError: place has to answer (group, rank), not None" in told
    assert "after * must be" not in told and "cannot unpack" not in told
