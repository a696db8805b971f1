"""A replay of a broken policy says so, whichever way it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepwell.cli import root

from .conftest import SMALL, conversations, replay, write

POLICIES = """
from dataclasses import dataclass
from stepwell import Offer, RankedPolicy, SchedulePolicy, hookimpl

@dataclass(frozen=True)
class Nothing:
    pass

class Nowhere(RankedPolicy):
    def __init__(self, config, context): pass
    def place(self, one, view):
        return None

class Dropping(RankedPolicy):
    def __init__(self, config, context): pass
    def place(self, one, view):
        return "all", one.arrival
    def merge(self, groups, view):
        return ()

class Raising(SchedulePolicy):
    def __init__(self, config, context): pass
    def order(self, waiting, view):
        raise RuntimeError("<no> order")

@hookimpl
def stepwell_schedulers():
    kinds = {"nowhere": Nowhere, "dropping": Dropping, "raising": Raising}
    return [Offer(name, kind, Nothing) for name, kind in kinds.items()]
"""


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Requests that come faster than they can be answered."""
    return write(tmp_path / "busy.jsonl", conversations(30, gap_ms=20))


@pytest.fixture(autouse=True)
def broken(fake_dist: Callable[..., Path], alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_PLUGINS", "broken")
    fake_dist("stepwell-broken", {"stepwell_broken": POLICIES}, {"stepwell.v1": {"broken": "stepwell_broken"}})


@pytest.mark.parametrize("policy", ["nowhere", "dropping", "raising"])
def test_faults_are_counted_and_the_last_is_told(busy: Path, policy: str) -> None:
    found = replay(busy, sets=(*SMALL, f"schedule.use={policy}"))
    assert found["policy_faults"] > 0
    assert found["last_fault"]
    assert found["finished"] == 30
    alone = _ran(busy, "--set", f"schedule.use={policy}")
    assert f"Warning: as configured: {_told(found)}\n" in alone.stderr
    assert "policy faults" in alone.stdout


def test_a_comparison_names_the_combination_that_is_broken(busy: Path, tmp_path: Path) -> None:
    options = ("--compare", "fcfs,raising", "--sweep", "speed=1,2", "--html", "page.html")
    for more in ((), ("--json",)):
        ran = _ran(busy, *options, *more)
        warned = [line for line in ran.stderr.splitlines() if line.startswith("Warning: ")]
        assert [line.split(": ")[1] for line in warned] == ["raising speed=1", "raising speed=2"]
        assert all("<no> order" in line for line in warned)
    document = json.loads(ran.stdout)
    counts = [one["result"]["policy_faults"] for one in document["combinations"]]
    assert [count > 0 for count in counts] == [False, True] * 2
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<p class="worse">raising speed=') == 2
    assert "&lt;no&gt; order" in page
    assert "policy faults" in page


def test_nothing_is_said_where_all_is_well(busy: Path, tmp_path: Path) -> None:
    ran = _ran(busy, "--compare", "fcfs", "--html", "page.html")
    assert "Warning" not in ran.stderr
    for text in (ran.stdout, (tmp_path / "page.html").read_text(encoding="utf-8")):
        assert "policy faults" not in text
    assert (replay(busy)["policy_faults"], replay(busy)["last_fault"]) == (0, "")


def _told(found: dict[str, object]) -> str:
    return (
        f"what a policy answered could not be used, {found['policy_faults']:,} times, and the default was taken; "
        + (f"the last: {found['last_fault']}")
    )


def _ran(trace: Path, *options: str) -> Result:
    sets = [part for one in SMALL for part in ("--set", one)]
    ran = CliRunner().invoke(root, ["replay", str(trace), *sets, *options], env={"COLUMNS": "200"})
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran
