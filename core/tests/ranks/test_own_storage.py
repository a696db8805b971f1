"""Ranks with host memory and a way to storage each for itself: a page needs the word of every rank."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stepwell import Capability
from stepwell.cache.elsewhere import Elsewhere
from stepwell.config import Chosen
from stepwell.errors import ConfigError, PluginError, StepwellError
from stepwell.offers import NoConfig, Offer

from .conftest import Spread

Stored = Callable[..., Spread]
OWN: Mapping[str, object] = {"ranks.arena": "own", "runner.heads": 4, "cache.device_pages": 20, "cache.host_pages": 16}


@pytest.fixture
def stored(spread: Callable[..., Spread], tmp_path: Path) -> Stored:
    """An engine on a folder of pages, which goes wrong on one rank."""
    import wild_store  # type: ignore[import-not-found]  # found by ranks in the same place

    def make(what: str = "", after: int = 0, **settings: object) -> Spread:
        wrong = wild_store.Wrong(what, after=after)
        provides = frozenset({Capability.LISTS, Capability.DELETES})
        offer = Offer("wild", partial(wild_store.make, str(tmp_path), wrong), provides=provides)

        def store(choice: Chosen) -> Chosen:
            return replace(choice, offer=offer, settings=NoConfig())

        names = {name.replace("__", "."): value for name, value in settings.items()}
        return spread(store=store, settings={**OWN, "cache.head_shards": 4, **names})

    return make


def prompts(seed: int, count: int = 6) -> list[list[int]]:
    draw = random.Random(seed)
    return [[seed, *(draw.randint(0, 255) for _ in range(26))] for _ in range(count)]


def ask(one: Spread, seed: int, rounds: int = 1, *, calm: bool = False) -> None:
    """More than device and host hold together, one after another; `calm`: each once the last one is stored."""
    for _ in range(rounds):
        for prompt in prompts(seed):
            one.start(prompt, 3).check()
            if calm:
                settled(one)


def settled(one: Spread) -> dict[str, float]:
    """What it counts, once nothing is under way; nobody's pages are astray then."""
    until = time.monotonic() + 10
    while any((stats := one.engine.control("stats"))[name] for name in ("in_flight", "store_pages_in_flight")):
        assert time.monotonic() < until
        time.sleep(0.01)
    one.engine.control("audit")
    stats = one.engine.control("stats")
    assert stats["audit_failures"] == 0
    return dict(stats)


def objects(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if len(path.name) == 80}


def notes(folder: Path, rank: int) -> list[str]:
    return [line.split()[0] for line in (folder / f"notes.{rank}").read_text().splitlines()]


@pytest.mark.parametrize(("heads", "kinds"), [(4, ("own", "one", "shared", "own")), (1, ("own", "one", "own"))])
def test_what_ranks_store_each_for_itself_any_number_of_ranks_reads(
    stored: Stored, tmp_path: Path, heads: int, kinds: tuple[str, ...]
) -> None:
    """And back. One head cannot be cut: each rank holds all of such a page, and rank 0 stores it."""
    settings: dict[str, dict[str, object]] = {"own": {}, "shared": {"ranks__arena": "shared"}, "one": {"ranks__tp": 1}}
    counts = []
    for seed, kind in enumerate(kinds):
        before = len(objects(tmp_path))
        one = stored(runner__heads=heads, **settings[kind])
        if seed:
            ask(one, seed - 1, calm=True)
            assert settled(one)["cached_storage"] >= 6 * 20
        already = settled(one)["bytes_stored"]
        ask(one, seed, calm=True)
        counts.append((settled(one)["bytes_stored"] - already, len(objects(tmp_path)) - before))
        one.engine.close()
    assert len(set(counts)) == 1, "as much at any number of ranks"
    assert counts[0][1] == 6 * 7 * (1 if heads == 1 else 4)
    assert notes(tmp_path, 1)[:3] == ["made", "attached", "closed"]


def test_what_one_rank_cannot_read_is_missing_on_all(stored: Stored) -> None:
    one = stored("mix", tiers__breaker_failures=1000)
    ask(one, 1, 6)
    stats = settled(one)
    counters = one.engine.control("storage")["counters"]
    assert stats["bytes_stored"] and stats["cached_storage"], counters
    assert all(counters[sign] for sign in ("failed_failed", "failed_checksum", "missing")), counters


def test_a_rank_that_answers_late_is_not_waited_for_and_keeps_its_pages(stored: Stored) -> None:
    one = stored("hang", after=12, tiers__timeout_s=0.1, tiers__breaker_s=0.1)
    until = time.monotonic() + 10
    while not one.engine.control("storage")["counters"]["late"]:
        assert time.monotonic() < until, "no call was late"
        ask(one, 1)
        settled(one)


def test_a_rank_whose_storage_fails_altogether_costs_the_hits_of_all(stored: Stored) -> None:
    one = stored("raise", after=8)
    ask(one, 1, 3)
    stats = settled(one)
    shown = one.engine.control("storage")
    assert shown["health"]["reading"] == shown["health"]["writing"] == "open", shown
    assert not stats["cached_storage"], stats
    assert one.engine.alive()


@pytest.mark.parametrize("what", ["storage", "signal"])
def test_a_rank_that_is_killed_under_storage_traffic_ends_the_engine(stored: Stored, what: str) -> None:
    one = stored("die" if what == "storage" else "", after=5)
    going = [one.start(prompt, 20) for prompt in prompts(1, 8)]
    if what == "signal":
        time.sleep(0.05)
        os.kill(one.pids[1], signal.SIGKILL)
    assert re.search(r"rank 1 \(pid \d+\) was killed by SIGKILL", one.why())
    assert {running.end().finish for running in going} <= {"error", "length"}


def test_a_rank_that_cannot_have_its_storage_says_so(stored: Stored, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rank 1: storage.path = '/gone': there is no such folder$"):
        stored("make")
    assert notes(tmp_path, 0) == ["made", "closed"], "the others let go of theirs"
    with pytest.raises(PluginError, match=r"^rank 1: storage.use = 'wild' .*: OSError: no cable$"):
        stored("make badly")
    with pytest.raises(StepwellError, match=r"rank 1: OSError: no memory window"):
        stored("attach")


def test_storage_is_changed_and_cleared_while_ranks_serve(stored: Stored, tmp_path: Path) -> None:
    one = stored()
    ask(one, 1)
    settled(one)
    assert objects(tmp_path)
    assert one.engine.control("storage.clear")["cleared"] == 6 * 7 * 4
    assert not objects(tmp_path)
    ask(one, 2)
    time.sleep(0.6)
    assert one.engine.control("storage")["counters"]["wild_calls"] > 4, "both ranks count"
    assert one.engine.control("storage.detach") == {"detached": "wild", "late_calls": 0, "closed": True}
    assert notes(tmp_path, 1) == ["made", "attached", "closed"]
    ask(one, 2)
    assert one.engine.control("storage.attach", given={"use": "memory"})["use"] == "memory"
    ask(one, 3, 2)
    stats = settled(one)
    assert stats["cached_storage"] >= 6 * 20
    with pytest.raises(StepwellError, match=r"storage.gib"):
        one.engine.control("storage.attach", given={"use": "memory", "gib": -1, "replace": True})


def test_the_engines_process_has_no_host_memory_then(stored: Stored, tmp_path: Path) -> None:
    one = stored()
    assert one.parts is not None and one.parts.arena is not None
    assert one.parts.arena.nbytes == 0 and one.parts.arena.fd == -1
    one.engine.close()
    own = [int((tmp_path / f"notes.{rank}").read_text().split("attached ")[1].split()[0]) for rank in (0, 1)]
    slot = sum(region.stride for region in one.parts.arena.regions)
    assert own[0] == own[1] and 2 * own[0] >= 16 * slot > own[0]


def test_what_each_rank_holds_whole_takes_room_once_a_rank(stored: Stored) -> None:
    gib = 120 * 4096 / 2**30
    for heads in (1, 4):
        one = stored(runner__heads=heads, cache__host_pages=None, cache__host_gib=gib)
        assert one.parts is not None and isinstance(one.parts.arena, Elsewhere)
        slot = one.parts.arena.regions[0].stride
        assert one.parts.arena.pages == (int(gib * 2**30) // (slot * (2 if heads == 1 else 1)),)


def test_a_storage_that_cannot_say_its_numbers_ends_nothing(stored: Stored) -> None:
    """Its rank goes on saying that it lives, which it does in the same message."""
    one = stored("count", ranks__timeout_s=1)
    ask(one, 1)
    until = time.monotonic() + 10
    while not {"storage_values_failed", "storage_wild_calls"} <= one.engine.control("stats").keys():
        assert time.monotonic() < until, "one rank counts, and the other says that it cannot"
        time.sleep(0.05)
    time.sleep(2)
    ask(one, 2)
