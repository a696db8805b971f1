"""Two ranks answer as one does, whatever befalls a copy, and end with one sentence where they are no longer one."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.errors import ConfigError, PluginError

from .conftest import Spread

Make = Callable[..., Spread]


def churn(spread: Spread, rounds: int = 5) -> None:
    """Prompts that come again and share prefixes, many more than the device holds."""
    draw = random.Random(7)
    stems = [[stem * 7 + at % 50 for at in range(20)] for stem in range(4)]
    prompts = [stem + [draw.randint(0, 255) for _ in range(draw.randint(1, 12))] for stem in stems for _ in range(4)]
    for _ in range(rounds):
        for running in [spread.start(prompt, 6) for prompt in draw.sample(prompts, 8)]:
            running.check()


@pytest.mark.parametrize("heads", [1, 4])
def test_host_memory_of_each_ranks_own_gives_the_same_answers(spread: Make, heads: int) -> None:
    one = spread(settings={"runner.heads": heads, "ranks.arena": "own"}, without=("storage", "prefetch"))
    churn(one)
    stats = one.engine.control("stats")
    assert stats["cached_host"] and stats["pages_loaded"]


def audited(spread: Spread) -> dict[str, object]:
    until = time.monotonic() + 10
    while any((stats := spread.engine.control("stats"))[name] for name in ("in_flight", "store_pages_in_flight")):
        assert time.monotonic() < until
        time.sleep(0.01)
    spread.engine.control("audit")
    return stats


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("what", ["delays", "copies"])
def test_answers_are_those_of_one_rank(spread: Make, what: str, heads: int) -> None:
    settings = {"runner.heads": heads, "runner.windows": [12], "cache.device_pages": 26}
    one = spread(what=what, late=heads == 4, rank=None if what == "delays" else 1, settings=settings)
    churn(one)
    stats = audited(one)
    assert stats["audit_failures"] == 0
    assert stats["pages_loaded"], stats
    assert bool(stats["pages_load_failed"]) == (what == "copies")


def test_a_request_without_a_seed_is_drawn_alike(spread: Make) -> None:
    one = spread()
    first, second = (one.start([1, 2, 3, 4, 5], 20, temperature=1.0) for _ in range(2))
    assert first.end().finish == second.end().finish == "length"
    assert first.tokens != second.tokens


def test_a_step_that_fails_on_all_ranks_is_a_failed_step(spread: Make) -> None:
    one = spread(settings={"runner.fail_steps": [2]})
    one.start([1, 2, 3, 4, 5]).check()


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("die", r"rank 1 \(pid \d+\) was killed by SIGKILL in step \d+"),
        ("stop", r"rank 1 \(pid \d+\) has not been heard for \d\.\d s in step \d+"),
        ("hang", r"rank 1 \(pid \d+\) did not answer step \d+ within 0.7 s"),
        ("raise", r"rank 1 \(pid \d+\) failed in step \d+: RuntimeError: the device is on fire"),
        ("tokens", r"rank 1 sampled other tokens than rank 0 in step \d+"),
        ("error", r"rank 1 failed in step \d+ where others did not: its memory is full"),
        ("number", r"rank 1 \(pid \d+\) answered nonsense in step \d+: it answered step \d+ where step \d+ was next"),
    ],
)
def test_a_rank_that_goes_wrong_ends_the_engine_with_one_sentence(spread: Make, what: str, sentence: str) -> None:
    timeout_s = 0.7 if what == "hang" else 2
    one = spread(what=what, settings={"ranks.timeout_s": timeout_s})
    running = one.start(range(20), 30)
    began = time.monotonic()
    last = running.end()
    assert time.monotonic() - began < timeout_s + 3
    assert last.finish == "error"
    assert last.error is not None
    assert re.fullmatch(f"the engine ended: {sentence}", last.error), last.error
    assert one.why() == last.error
    assert one.start([1, 2, 3]).end().finish == "error"


def test_a_kill_at_any_time_is_an_end_that_says_so(spread: Make) -> None:
    one = spread(settings={"runner.pace": 0.01})
    going = [one.start(range(at, at + 20), 100) for at in range(4)]
    time.sleep(random.random() * 0.1)
    os.kill(one.pids[0], signal.SIGKILL)
    for running in going:
        last = running.end()
        assert last.finish == "error" and "rank 0 (pid" in str(last.error) and "SIGKILL" in str(last.error)


def test_a_rank_that_dies_while_nothing_runs_ends_the_engine(spread: Make) -> None:
    one = spread()
    os.kill(one.pids[1], signal.SIGKILL)
    assert one.why().endswith("was killed by SIGKILL")


def test_a_rank_that_cannot_start_says_why(spread: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rank 1: runner.model = 'gone': there is no such model$"):
        spread(what="make")
    with pytest.raises(PluginError, match=r"^rank 1 \(pid \d+\) was killed by SIGKILL before it was ready$"):
        spread(what="die at once")


def test_a_rank_that_is_stopped_while_it_starts_is_the_one_to_blame(
    spread: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one that waits for it, as all do whose collectives meet."""
    with pytest.raises(PluginError, match=r"^rank 1 \(pid \d+\) was not ready within 4 s$"):
        spread(what="stop at once", settings={"ranks.start_s": 4})
    monkeypatch.setattr("stepwell.engine.ranks.runner.STARTING_SILENT_S", 2.0)
    with pytest.raises(PluginError, match=r"^rank 1 \(pid \d+\) has not been heard for .+ s before it was ready$"):
        spread(what="stop at once")


def test_what_cannot_be_spread_is_refused(spread: Make) -> None:
    with pytest.raises(ConfigError, match=r"cache.head_shards = 3"):
        spread(settings={"runner.heads": 4, "cache.head_shards": 3})


def test_saves_behind_steps_that_never_end_are_missed(spread: Make) -> None:
    one = spread(what="keep", at=1, late=True, settings={"ranks.timeout_s": 0.5})
    one.start(range(20), 4).check()
    assert re.search(r"rank 1 \(pid \d+\) did not end a save within (0.5|1) s$", one.why())


def test_a_runner_that_declares_no_ranks_is_refused(spread: Make) -> None:
    with pytest.raises(ConfigError, match=r"runner.use = 'sim' .* cannot be spread over ranks.tp = 2 ranks"):
        spread(alone=True)


def test_what_the_first_rank_counts_is_told_with_the_engine(spread: Make) -> None:
    one = spread()
    until = time.monotonic() + 10
    while "runner_told_by_rank" not in (stats := one.engine.control("stats")):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert stats["runner_told_by_rank"] == 0.0


def test_more_ranks_than_any_host_has_devices_are_refused(spread: Make) -> None:
    """Before the first of them is started."""
    with pytest.raises(ConfigError, match=r"^ranks.tp = 1000 is more than the 64 ranks that one model can have$"):
        spread(settings={"ranks.tp": 1000})
