"""The kit of balancers: placements that are whole, the same wherever they are made, and worth their moves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from stepwell import Balancer, ConfigError, Placement
from stepwell_testkit.balance.judge import kept, repeats, split, worst, wrong
from stepwell_testkit.balance.scenes import B095, B096, CROWDED, HOT, REFUSED, Scene, loads, scenes, shapes
from stepwell_testkit.kit import Kit
from stepwell_testkit.together import at_once

THREADS = 4


class BalanceKit(Kit):
    """Tests a `Balancer`: give the fixture `balancer`.

    Loads and shapes are the kit's own. One that keeps each group of experts on one node, where groups divide over
    nodes, says `hierarchical = True` and is held to it.
    """

    required: ClassVar[tuple[str, ...]] = ("balancer",)
    hierarchical: ClassVar[bool] = False
    """Whether all replicas of a group's experts stand on one node."""
    scenes: ClassVar[int] = 60
    """Random shapes that each test asks about."""

    def test_it_places_experts_in_slots(self, balancer: Balancer) -> None:
        assert isinstance(balancer, Balancer)
        for asked in (B096, *B095):
            placed = balancer.place(asked.load, asked.topology, None)
            assert isinstance(placed, Placement), f"place gave {type(placed).__name__}"
            assert placed.experts.dtype == np.int32, f"experts of {placed.experts.dtype}"
            assert placed.experts.shape == (len(asked.load), asked.topology.slots)

    def test_every_expert_stands_somewhere(self, balancer: Balancer) -> None:
        for asked in (B096, *B095, CROWDED, *self._asked(balancer, 1)):
            why = wrong(asked, asked.put(balancer))
            assert not why, f"{asked}: {why}"

    def test_b095_no_rank_has_an_expert_twice_without_need(self, balancer: Balancer) -> None:
        for asked in (*B095, B096, CROWDED, *self._asked(balancer, 2)):
            why = repeats(asked, asked.put(balancer))
            assert not why, f"{asked}: {why}"

    def test_b096_equal_and_empty_loads_are_no_special_case(self, balancer: Balancer) -> None:
        for experts, topology in shapes(3, self.scenes):
            for load in (np.zeros((2, experts), np.int64), np.full((2, experts), 5, np.int64)):
                placed = Scene(load, topology).put(balancer)
                why = wrong(Scene(load, topology), placed)
                assert not why, f"{Scene(load, topology)}: {why}"
                assert (placed[0] == placed[1]).all(), "layers with the same loads are placed differently"

    def test_b096_equal_numbers_give_equal_placements(self, balancer: Balancer) -> None:
        """However often, whatever was asked in between, and however the numbers lie in memory."""
        asked = [B096, *self._asked(balancer, 4)]
        answers = [one.put(balancer) for one in asked]
        for at in np.random.default_rng(0).permutation(len(asked)).tolist():
            one = asked[at]
            replace(one, load=3 * one.load[:, ::-1]).put(balancer)
            apart = np.zeros((2 * one.experts, len(one.load)), np.int64)[::2].T
            apart[:] = one.load
            again = replace(one, load=apart, current=one.current and Placement(one.current.experts.copy()))
            assert (again.put(balancer) == answers[at]).all(), f"{one}: asked again, another placement"

    def test_b096_chance_and_threads_do_not_matter(self, balancer: Balancer) -> None:
        asked = [B096, *self._asked(balancer, 5)]
        answers = [one.put(balancer) for one in asked]
        before = random.getstate(), np.random.get_state()
        try:
            for seed in range(2):
                random.seed(seed)
                np.random.seed(seed)
                together = at_once(lambda _: [one.put(balancer) for one in asked], THREADS)
                for found in together:
                    same = all((one == other).all() for one, other in zip(found, answers, strict=True))
                    assert same, "another placement on another thread, or with another seed"
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    def test_it_leaves_what_it_is_shown(self, balancer: Balancer) -> None:
        for asked in self._asked(balancer, 6):
            load = asked.load.copy()
            held = None if asked.current is None else asked.current.experts.copy()
            try:
                asked.put(balancer)
            except ValueError as error:
                raise AssertionError(f"it writes to what it is shown: {error}") from error
            assert (asked.load == load).all()
            assert asked.current is None or (asked.current.experts == held).all()

    def test_what_stays_on_a_rank_stays_in_its_slot(self, balancer: Balancer) -> None:
        for asked in self._moved(balancer, 7):
            why = kept(asked, asked.put(balancer))
            assert not why, f"{asked}: {why}"

    def test_moving_is_never_worse_than_staying(self, balancer: Balancer) -> None:
        for asked in self._moved(balancer, 8):
            assert asked.current is not None
            before, after = worst(asked, asked.current.experts), worst(asked, asked.put(balancer))
            layer = int((after - before).argmax())
            why = f"layer {layer}: the fullest rank had {before[layer]:g} tokens and would have {after[layer]:g}"
            assert (after <= before * (1 + 1e-9)).all(), f"{asked}: {why}"

    def test_a_hot_expert_is_spread(self, balancer: Balancer) -> None:
        placed = HOT.put(balancer)
        assert worst(HOT, placed)[0] < 600, f"one rank has {worst(HOT, placed)[0]:g} of {HOT.load.sum()} tokens"

    def test_groups_stay_on_a_node(self, balancer: Balancer) -> None:
        if not self.hierarchical:
            pytest.skip("does not say that it is hierarchical")
        fit = [asked for asked in self._asked(balancer, 9) if asked.topology.groups > 1 and asked.current is None]
        for asked in (B096, *fit):
            why = split(asked, asked.put(balancer))
            assert not why, f"{asked}: {why}"

    @pytest.mark.parametrize("what", REFUSED)
    def test_what_does_not_fit_is_refused_in_a_sentence(self, balancer: Balancer, what: str) -> None:
        with pytest.raises(ConfigError) as caught:
            REFUSED[what].put(balancer)
        said = str(caught.value)
        assert said and "\n" not in said, f"{what}: refused with {said!r}"

    # --- helpers -------------------------------------------------------------------------------------------------

    def _asked(self, balancer: Balancer, seed: int) -> Iterator[Scene]:
        """From scratch, and after another load."""
        yield from scenes(seed, self.scenes // 2)
        yield from self._moved(balancer, seed + 100, self.scenes // 2)

    def _moved(self, balancer: Balancer, seed: int, count: int = 0) -> Iterator[Scene]:
        """With experts where they were put for another load: a random one, or nearly the same."""
        dice = np.random.default_rng(seed)
        for number, asked in enumerate(scenes(seed, count or self.scenes)):
            others = list(loads(seed + 1_000 + number, len(asked.load), asked.experts))
            near = asked.load + dice.integers(0, 2, asked.load.shape) * (asked.load // 8)
            yield asked.after(balancer, near if number % 2 else others[number // 2 % len(others)])
