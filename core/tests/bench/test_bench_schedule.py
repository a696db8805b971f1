"""`stepwell bench schedule` checks the orders that it times, and says what it measured."""

import json
from itertools import count

import pytest
from click.testing import CliRunner

from stepwell.abc.ranked import RankedPolicy
from stepwell.bench.schedule import TARGETS, command, prompts_of
from stepwell.bench.waiters import Waiters
from stepwell.errors import ConfigError

QUICK = ("--page=16", "--running=8", "--ticks=3")


class Longest(RankedPolicy):
    probes = True

    def place(self, request, view):
        return 0, -view.cached(request)


class Fickle(Longest):
    def __init__(self):
        self.asked = count()

    def place(self, request, view):
        return 0, next(self.asked) * 7 % 11


class Blind(Longest):
    """Misses what changes in the tree."""

    probes = False


def test_it_reports_every_figure_beside_its_target():
    result = CliRunner().invoke(command, [*QUICK, "--waiting=80", "--rounds=2", "--nodes=200", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    for key in (*TARGETS, "full_match_ms", "step_us"):
        assert told[key] > 0
    assert told["targets"] == TARGETS
    assert told["nodes"] >= 200 and 0 < told["cached_share"] < 1
    assert told["affected"] >= 1, "the tree changed where somebody waits"
    assert "8 running, 1000 waiting" in told["step_load"]


def test_without_json_it_shows_tables():
    result = CliRunner().invoke(command, [*QUICK, "--waiting=20", "--rounds=1", "--policy=fcfs"])
    assert result.exit_code == 0, result.output
    assert "full match of each" in result.output and "fcfs" in result.output


@pytest.mark.parametrize(("policy", "wrong"), [(Longest, False), (Fickle, True), (Blind, True)])
def test_an_order_that_is_not_the_one_from_nothing_is_not_timed(policy, wrong):
    prompts = prompts_of(None, 120, 16)
    waiters = Waiters(prompts[:60], prompts[-60:], 16)
    if wrong:
        with pytest.raises(RuntimeError, match="another than from nothing"):
            waiters.measure(policy, 3)
    else:
        times = waiters.measure(policy, 3)
        assert all(len(figures) == 3 for figures in (times.scratch, times.publish, times.affected))


def test_a_trace_with_too_few_requests_is_refused(tmp_path):
    trace = tmp_path / "short.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n')
    result = CliRunner().invoke(command, [str(trace), "--waiting", "1"])
    assert isinstance(result.exception, ConfigError) and "too few for --waiting 1" in str(result.exception)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("engine.look_at=0", "engine.look_at (--set engine.look_at): 0 is less than 1"),
        ("engine.lok_at=8", "engine.lok_at (--set engine.lok_at): no such setting; did you mean look_at?"),
        ("sched.use=lpm", "sched (--set sched.use): no such section; did you mean schedule?"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_before_any_work(setting, said):
    result = CliRunner().invoke(command, [*QUICK, "--waiting=20", "--set", setting])
    assert isinstance(result.exception, ConfigError) and str(result.exception) == said
