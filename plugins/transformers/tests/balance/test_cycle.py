"""Ranks that finish or drop a cycle together."""

import pytest

from stepwell_transformers.balance import Cycle, Verdict


def agree(cycles):
    return Cycle.verdict(tuple(map(min, zip(*(cycle.vote() for cycle in cycles), strict=True))))


def run(steps, deadline, ready):
    """Verdicts of four ranks over steps; `ready(cycle, rank, step in the cycle)` acts."""
    number, begun, found = 0, 0, []
    cycles = [Cycle(0, deadline) for _ in range(4)]
    for step in range(steps):
        for rank, cycle in enumerate(cycles):
            ready(cycle, rank, step - begun)
        verdict = agree(cycles)
        assert all(cycle.left >= 0 for cycle in cycles)
        if verdict is not Verdict.WAIT:
            found.append((step, number, verdict))
            number, begun = number + 1, step + 1
            cycles = [Cycle(number, deadline) for _ in range(4)]
            continue
        for cycle in cycles:
            cycle.tick()
    return found


def test_all_go_once_the_last_rank_is_ready():
    def ready(cycle, rank, step):
        if step >= 3 * rank:
            cycle.ready(77)

    assert run(40, 20, ready)[:2] == [(9, 0, Verdict.GO), (19, 1, Verdict.GO)]


def test_b100_a_planner_that_fails_or_is_late_is_dropped_by_all_and_the_next_cycle_starts():
    def ready(cycle, rank, step):
        late = rank == 2 and cycle.number == 1
        if rank == 2 and cycle.number == 0:
            return cycle.failed()
        if step >= (200 if late else 2):
            cycle.ready(5)

    found = run(200, 20, ready)
    assert found[0] == (0, 0, Verdict.DROP)
    assert found[1] == (21, 1, Verdict.DROP)
    assert {verdict for _, number, verdict in found[2:]} == {Verdict.GO} and len(found) > 50


def test_b100_the_count_of_steps_ends_at_zero():
    cycle = Cycle(0, 2)
    for _ in range(50):
        cycle.tick()
    assert cycle.left == 0 and agree([cycle]) is Verdict.DROP


def test_b096_ranks_with_different_plans_drop_them():
    cycles = [Cycle(4, 9) for _ in range(3)]
    for cycle, plan in zip(cycles, (8, 8, 9), strict=True):
        cycle.ready(plan)
    assert agree(cycles) is Verdict.DROP
    cycles[2].ready(8)
    assert agree(cycles) is Verdict.GO


def test_ranks_in_different_cycles_drop_them():
    cycles = [Cycle(4, 9), Cycle(5, 9)]
    for cycle in cycles:
        cycle.ready(1)
    assert agree(cycles) is Verdict.DROP


def test_a_cycle_without_steps_is_refused():
    with pytest.raises(ValueError, match="0 steps"):
        Cycle(1, 0)
