"""Policies that break their contracts cost hits, never an answer and never the engine."""

import random
import sys
from itertools import repeat

import numpy as np
import pytest

from stepwell.abc.evict import EvictionPolicy, Segment
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.sim import SimConfig
from stepwell.builtin.writers import WriteThrough
from stepwell.engine import contain
from stepwell.engine.contain import Faults, SafeEviction, SafeRetention, SafeWrite


class Evil(EvictionPolicy):
    """Keeps a list; what it proposes of it is up to `spoil`."""

    def __init__(self, spoil, raises=""):
        self.segments, self.gone = {}, []
        self.spoil, self.raises = spoil, raises
        self.luck = random.Random(1)

    def _told(self, what):
        if what == self.raises and self.luck.random() < 0.3:
            raise RuntimeError(what)

    def on_insert(self, segment):
        self._told("insert")
        self.segments[segment] = None

    on_hit = on_expose = on_insert

    def on_remove(self, segment):
        self._told("remove")
        self.gone.append(segment)
        self.segments.pop(segment, None)

    def on_split(self, upper, lower):
        self._told("split")

    def victims(self, pages):
        return self.spoil(self)


def endless(policy):
    while True:
        yield from list(policy.segments) or [None]


def strangers(policy):
    while True:
        yield Segment(5)


def breaks(policy):
    yield from list(policy.segments)[:1]
    raise RuntimeError("halfway")


SPOILT = {
    "nothing": lambda policy: [],
    "none": lambda policy: None,
    "junk": lambda policy: [1, None, "x"],
    "unhashable": lambda policy: [[], {}],
    "removed": lambda policy: policy.gone + list(policy.segments),
    "only removed": lambda policy: list(policy.gone),
    "twice": lambda policy: [one for one in policy.segments for _ in range(3)],
    "endless": endless,
    "strangers": strangers,
    "halfway": breaks,
}
GOOD = {f"{what} raises": (lambda policy: list(policy.segments), what) for what in ("insert", "remove", "split")}


def serve(world, monkeypatch, evict=None, write=None, retain=None, **options):
    """A crowded cache of two groups whose policies are these; every answer is checked, and that all came."""
    faults = Faults()
    home = sys.modules[world.__module__]
    monkeypatch.setattr(home, "Oldest", lambda: SafeEviction(evict() if evict else Lru(), faults))
    monkeypatch.setattr(home, "TheEnd", lambda: SafeRetention(retain or Tail(), faults))
    sim = SimConfig(windows=(6,), token_bytes=8, eos_every=0)
    counted = []
    faults.also = counted.append
    w = world(sim, page=4, device=24, host=12, write=SafeWrite(write or WriteThrough(), faults), **options)
    rids = [w.submit(letter * length, max_tokens=9) for length in (30, 9, 17, 33) for letter in "abcabd"]
    w.run()
    w.check(*rids)
    w.clean()
    return counted


@pytest.mark.parametrize("spoil", SPOILT)
def test_an_eviction_policy_may_propose_whatever_it_likes(world, monkeypatch, spoil):
    assert serve(world, monkeypatch, lambda: Evil(SPOILT[spoil]))


@pytest.mark.parametrize("name", GOOD)
def test_an_eviction_policy_may_raise_when_told(world, monkeypatch, name):
    assert serve(world, monkeypatch, lambda: Evil(*GOOD[name]))


def test_a_policy_that_keeps_its_contract_is_not_blamed(world, monkeypatch):
    assert not serve(world, monkeypatch)


class Write(WritePolicy):
    def __init__(self, answer, reserve=0.0):
        self.answer, self.reserve = answer, reserve

    def decide(self, edge, cause, uses):
        return self.answer()


@pytest.mark.parametrize("answer", [lambda: None, lambda: "now", lambda: 1 / 0])
def test_a_write_policy_may_decide_nothing(world, monkeypatch, answer):
    assert serve(world, monkeypatch, write=Write(answer))


@pytest.mark.parametrize("reserve", [5.0, -1.0, float("nan"), "x", None])
def test_a_reserve_that_is_no_share_is_none(reserve):
    said = []
    policy = SafeWrite(Write(lambda: Decision.NOW, reserve), said.append)
    assert policy.reserve == 0.0 and len(said) == 1
    assert policy.decide(Edge.SAVE, Cause.INSERT, 1) is Decision.NOW


class Keep(RetentionPolicy):
    def __init__(self, answer):
        self.answer = answer

    def keep(self, length, page, branches):
        return self.answer(length)

    def along(self, start, end, page, branches):
        return self.answer(end)


class Mute(Exception):
    def __repr__(self):
        raise self


def mute(length):
    raise Mute


NONSENSE = {
    "none": lambda length: None,
    "raises": lambda length: 1 / 0,
    "raises what cannot be shown": mute,
    "junk": lambda length: ["x", 1.5, None, -4, 10 * length, length, np.zeros(3, np.int64)],
    "text": lambda length: "all of it",
    "endless": lambda length: repeat(length),
    "endless junk": lambda length: repeat(None),
    "too many": lambda length: range(10**12),
}


@pytest.mark.parametrize("answer", NONSENSE)
def test_a_retention_policy_may_keep_nonsense(world, monkeypatch, answer):
    assert serve(world, monkeypatch, retain=Keep(NONSENSE[answer]))


def test_a_retention_policy_may_count_with_numpy():
    said = []
    policy = SafeRetention(Keep(lambda length: np.arange(4, length + 1, 4)), said.append)
    assert policy.keep(20, 4, ()) == policy.along(0, 20, 4, ()) == [4, 8, 12, 16, 20]
    assert all(type(one) is int for one in policy.keep(20, 4, ())) and not said


def test_faults_are_said_once_and_counted_always(caplog):
    counted = []
    faults = Faults()
    faults.also = counted.append
    for _ in range(3):
        faults("the dog ate it")
    for number in range(3 * contain.DIFFERENT):
        faults(f"fault {number}")
    assert len(counted) == 3 + 3 * contain.DIFFERENT
    assert len(caplog.records) == contain.DIFFERENT
