"""Ranks cannot drift apart: one brain decides for all, a copy has ended once it has on each, and keys name no rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .conftest import Spread

Make = Callable[..., Spread]


@pytest.fixture
def told(spread: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Ranks that write into `tmp_path` what they were told and what they told."""
    import told_runner  # type: ignore[import-not-found]  # found by ranks in the same place
    import wild_runner  # type: ignore[import-not-found]

    monkeypatch.setattr(wild_runner, "make", partial(told_runner.make, str(tmp_path)))
    return spread


def notes(folder: Path, rank: int, kind: str) -> list[list[str]]:
    lines = [line.split("\t") for line in (folder / f"rank{rank}").read_text().splitlines()]
    return [rest for first, *rest in lines if first == kind]


def test_b077_ranks_of_unlike_pace_are_told_the_same_steps_one_for_one(told: Make, tmp_path: Path) -> None:
    """More wait than there is room for, and ranks take their time: nobody counts by what is free on its own side."""
    tight = {"ranks.tp": 4, "runner.heads": 4, "cache.device_pages": 16, "engine.max_running": 3}
    one = told(what="delays", rank=None, settings=tight)
    stem = list(range(12))
    going = [one.start([*stem, 20 + number, 30 + number], 12) for number in range(6)]
    for running in going:
        running.check()
    one.engine.close()
    plans = [notes(tmp_path, rank, "plan") for rank in range(4)]
    assert len(plans[0]) >= 12, "too few steps to tell"
    assert plans[1] == plans[0] and plans[2] == plans[0] and plans[3] == plans[0]


def test_b078_a_save_has_ended_when_it_has_on_the_slowest_rank(told: Make, tmp_path: Path) -> None:
    """Rank 0 has written its half at once, rank 1 steps later. Until then the page is nobody else's, on either."""
    one = told(late=True, settings={"runner.heads": 2, "cache.device_pages": 20})
    one.start([1, 2, 3]).check()  # the runner is there
    heard: dict[int, float] = {}
    saved = one.runner.saved

    def listening() -> object:
        found = saved()
        heard.update(dict.fromkeys(found, time.monotonic()))
        return found

    one.runner.saved = listening  # type: ignore[assignment,method-assign]
    for number in range(12):
        one.start([number, *range(50, 61)], 8).check()
    one.engine.control("audit")
    assert one.engine.control("stats")["audit_failures"] == 0
    one.engine.close()
    first, last = ({int(id): float(at) for id, at in notes(tmp_path, rank, "saved")} for rank in (0, 1))
    both = heard.keys() & first.keys() & last.keys()
    assert len(both) > 5, "too few saves to tell"
    assert sum(first[id] < last[id] for id in both) > len(both) / 2, "rank 1 was not the slower one"
    assert all(heard[id] >= max(first[id], last[id]) for id in both)
    assert heard.keys() <= last.keys(), "a save ended that rank 1 had not written"


KEYS = """
import struct
from stepwell.cache.keys import namespace, page_digests
from stepwell.types import Full, GroupSpec

tokens = struct.pack("<32i", *range(1, 33))
for extra in (None, "picture"):
    print(page_digests(namespace({"model": "m", "page_size": "8", "extra": extra}), tokens, 8)[-32:].hex())
for ranks in (1, 2, 4):
    group = GroupSpec("full", Full(), 64 // ranks, (0, 1), heads=4 // ranks, ranks=ranks, shards=4)
    print(b"".join(group.tags).hex())
"""


def test_b080_keys_depend_on_content_alone_in_every_process_and_on_every_rank() -> None:
    def keys(seed: str) -> list[str]:
        env = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"},
            "PYTHONHASHSEED": seed,
        }
        done = subprocess.run([sys.executable, "-c", KEYS], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    plain, salted, *tags = keys("random")
    assert keys("1") == [plain, salted, *tags]
    assert plain == "0de951d9efa1af255e0cf9bb80d4c066b496aac7699eb70b0d829be8f6f4f8d2"
    assert salted == "aba742fb7840a774b4691ab9deaaee08c298431c4b47575e621010e551746152"
    assert tags == ["7a3591fc31be170cfdbdeb74012f28d7eb6d4f2f93a18bae5ccee639d110b68d"] * 3, "over however many ranks"
