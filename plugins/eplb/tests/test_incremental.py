"""Few moves: within the budget, where they help most, and nothing that need not move."""

import numpy as np
import pytest

from stepwell import ConfigError, Placement, Topology
from stepwell_eplb import Deepseek, DeepseekConfig, Incremental, IncrementalConfig
from stepwell_eplb.cli.quality import unevenness
from stepwell_eplb.draw import SORTS, draw, drifted
from stepwell_eplb.spend import Stop, spend
from stepwell_eplb.swaps import second


def incremental(**settings):
    return Incremental(IncrementalConfig(**settings), None)


def placed(load, topology):
    return Deepseek(DeepseekConfig(), None).place(load, topology, None)


def moved(before, after):
    return int((before.experts != after.experts).sum())


@pytest.mark.parametrize("sort", SORTS)
def test_a_stale_map_is_repaired_with_seven_percent_of_the_slots(sort):
    load, topology = draw(sort, 11), Topology(32, 9)
    before, later = placed(load, topology), drifted(load, 12)
    after = incremental().place(later, topology, before)
    anew = Deepseek(DeepseekConfig(), None).place(later, topology, before)
    assert unevenness(later, before, 32).mean() > 1.15
    assert unevenness(later, after, 32).mean() <= 1.05
    assert unevenness(later, after, 32).max() <= 1.06
    assert moved(before, after) <= 0.07 * before.experts.size < 0.9 * moved(before, anew)
    assert not second(after.experts.reshape(58, 32, 9)).any()


def test_layers_within_the_target_are_left_alone():
    load, topology = draw("served", 1, layers=10), Topology(32, 9)
    before = placed(load, topology)
    later = load.copy()
    later[3] = drifted(load, 2)[3]
    after = incremental().place(later, topology, before)
    assert np.flatnonzero((after.experts != before.experts).any(axis=1)).tolist() == [3]


@pytest.mark.parametrize("budget", [1.5, 40, 0.01, 0.2, 1.0])
def test_the_budget_is_kept_and_more_of_it_helps(budget):
    load, topology = draw("dirichlet", 4, layers=8), Topology(32, 9)
    before, later = placed(load, topology), drifted(load, 5)
    after = incremental(budget=budget).place(later, topology, before)
    most = budget * before.experts.size if budget <= 1 else budget
    assert moved(before, after) <= most
    some, none = unevenness(later, after, 32), unevenness(later, before, 32)
    assert (some <= none + 1e-9).all() and some.sum() < none.sum()


def test_few_moves_go_where_they_help_most():
    load, topology = draw("served", 6, layers=8), Topology(32, 9)
    before = placed(load, topology)
    later = load.copy()
    later[2], later[5] = drifted(load, 7, by=0.6)[2], drifted(load, 7, by=0.12)[5]
    after = incremental(budget=6).place(later, topology, before)
    assert np.flatnonzero((after.experts != before.experts).any(axis=1)).tolist() == [2]


def test_without_spare_slots_experts_are_traded():
    load, topology = draw("uniform", 1, layers=6, experts=64), Topology(16, 4)
    before, later = placed(load, topology), drifted(load, 2)
    after = incremental(budget=1.0).place(later, topology, before)
    assert (np.sort(after.experts, axis=1) == np.arange(64)).all()
    assert unevenness(later, after, 16).mean() < 0.5 * unevenness(later, before, 16).mean() + 0.5


def test_where_no_path_leads_to_the_target_a_rich_budget_places_anew():
    load, topology = draw("lognormal", 8, layers=6), Topology(144, 2)
    before, later = placed(load, topology), drifted(load, 9)
    after = incremental(budget=1.0).place(later, topology, before)
    anew = Deepseek(DeepseekConfig(), None).place(later, topology, before)
    assert (unevenness(later, after, 144) <= unevenness(later, anew, 144) + 1e-9).all()


def test_groups_stay_on_their_node_where_they_are_on_one():
    load, topology = draw("lognormal", 2, layers=6, experts=64), Topology(16, 5, nodes=4, groups=8)
    before, later = placed(load, topology), drifted(load, 3)
    after = incremental(budget=0.3).place(later, topology, before)
    assert moved(before, after)
    nodes = after.experts.reshape(6, 4, -1)
    for layer in range(6):
        on = [set((row // 8).tolist()) for row in nodes[layer]]
        assert sum(map(len, on)) == len(set.union(*on)) == 8


def test_what_stands_twice_on_a_rank_is_parted():
    load, topology = np.array([[20, 10, 10, 10]]), Topology(3, 2)
    before = Placement(np.array([[0, 0, 1, 2, 3, 1]], np.int32))
    after = incremental(budget=1.0, target=1.0).place(load, topology, before)
    assert not second(after.experts.reshape(1, 3, 2)).any()


def test_the_leg_that_takes_most_off_for_a_move_goes_first():
    ways = [[Stop(0, 100), Stop(2, 90), Stop(4, 60)], [Stop(0, 100), Stop(1, 89)], [Stop(0, 50)]]
    assert spend(ways, 0) == [0, 0, 0]
    assert spend(ways, 1) == [0, 1, 0]
    assert spend(ways, 3) == [1, 1, 0]
    assert spend(ways, 5) == [2, 1, 0]


def test_a_better_stop_that_costs_nothing_more_is_taken():
    assert spend([[Stop(0, 9), Stop(3, 5), Stop(3, 4)]], 3) == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"budget": 0.0}, "budget = 0.0"), ({"budget": float("nan")}, "budget"), ({"target": 0.9}, "target = 0.9")],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        incremental(**settings)


def test_a_placement_that_lacks_an_expert_is_refused():
    with pytest.raises(ConfigError, match="lacks expert 3 in layer 0"):
        incremental().place(np.ones((1, 4), np.int64), Topology(2, 2), Placement(np.array([[0, 1, 2, 2]], np.int32)))
    with pytest.raises(ConfigError, match="names expert 7"):
        incremental().place(np.ones((1, 4), np.int64), Topology(2, 2), Placement(np.array([[0, 1, 2, 7]], np.int32)))
