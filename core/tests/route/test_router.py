"""A router keeps the accounts of what was sent, and stands a policy that is broken."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.abc.route import Replica, RoutePolicy
from stepwell.abc.sink import PagesStored
from stepwell.builtin.routers import CacheAware, CacheAwareConfig, LeastLoaded, RoundRobin, Sticky
from stepwell.cache.keys import page_digests
from stepwell.route.prefix_index import PrefixIndex
from stepwell.route.router import Router
from stepwell.schedule.request import Request
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Full, Tier

PAGE, SEED = 4, bytes(32)
NAMES = ["a", "b", "c"]


def request(rid: str, tokens: Sequence[int], key: str | None = None, *, store: bool = True) -> Request:
    told = array("i", tokens).tobytes()
    digests = page_digests(SEED, told, PAGE)
    return Request(rid=rid, namespace=SEED, tokens=told, digests=digests, routing_key=key, store=store)


def router(policy: RoutePolicy | None = None) -> tuple[Router, PrefixIndex]:
    index = PrefixIndex(PAGE, {"full": Full()})
    return Router(policy or CacheAware(), index), index


def stored(asked: Request) -> PagesStored:
    pages = [asked.digests[at : at + DIGEST_BYTES] for at in range(0, len(asked.digests), DIGEST_BYTES)]
    return PagesStored(Tier.DEVICE, "full", tuple(page + bytes(TAG_BYTES) for page in pages), None, PAGE)


class Broken(RoutePolicy):
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # that is the fault


@pytest.mark.parametrize("answer", [ValueError("no"), -1, 3, None, "a", 1.5])
def test_a_broken_policy_is_a_counted_fault_and_the_least_busy_is_taken(answer: object) -> None:
    told: list[str] = []
    index = PrefixIndex(PAGE, {"full": Full()})
    one = Router(Broken(answer), index, fault=told.append)
    assert [one.send(request(str(n), range(9)), NAMES) for n in range(4)] == ["a", "b", "c", "a"]
    assert one.faults == len(told) == 4 and told[0].startswith("the route policy ")


def test_requests_of_one_moment_see_each_other() -> None:
    """Before any event has come: of two that begin alike the second goes where the first is, once that has begun."""
    one, _ = router(CacheAware(CacheAwareConfig(running_tokens=1)))
    first = one.send(request("1", range(40)), NAMES)
    assert one.send(request("0", range(40)), NAMES) != first, "to wait for it would take as long as to compute it"
    one.began("1")
    assert one.send(request("2", [*range(36), 99, 98, 97, 96, 95]), NAMES) == first
    assert one.send(request("3", range(100, 140)), NAMES) != first


def test_what_events_say_draws_a_request() -> None:
    one, index = router()
    asked = request("1", range(200))
    index.apply("b", [stored(asked)], 0)
    assert one.send(asked, NAMES) == "b"
    assert one.view(asked, NAMES)[1].cached_tokens == 49 * PAGE, "a token is left to compute"
    one.lost("b")
    assert one.view(asked, NAMES)[1] == Replica("b", 0, 0, 0, sent=0)


def test_what_must_not_be_kept_promises_nothing() -> None:
    one, _ = router()
    asked = request("1", range(40), store=False)
    one.send(asked, ["a"])
    assert one.view(asked, ["a"])[0].cached_tokens == 0


def test_who_joins_takes_turns_with_those_that_serve() -> None:
    """Not with the gone, of which one was hardly sent anything; nor with what it was sent itself in another life."""
    one, _ = router(RoundRobin())
    one.send(request("early", range(9)), ["a", "b", "gone"])
    one.lost("gone")
    for number in range(100):
        one.send(request(f"old {number}", range(9)), ["a", "b"])
    turns = [one.send(request(f"new {number}", range(9)), ["a", "b", "c"]) for number in range(30)]
    assert [turns.count(name) for name in NAMES] == [10, 10, 10]
    for number in range(100):
        one.send(request(f"without {number}", range(9)), ["a", "b"])
    turns = [one.send(request(f"again {number}", range(9)), NAMES) for number in range(30)]
    assert max(turns.count(name) for name in NAMES) <= 11, "one that was silent meanwhile is not flooded"
    one.lost("c")
    turns = [one.send(request(f"anew {number}", range(9)), NAMES) for number in range(30)]
    assert max(turns.count(name) for name in NAMES) <= 11, "nor one that was lost"


def test_who_begins_alone_shares_when_others_come_back() -> None:
    one, _ = router(RoundRobin())
    for number in range(100):
        one.send(request(f"old {number}", range(9)), ["a", "b"])
    one.send(request("alone", range(9)), ["c"])
    turns = [one.send(request(f"new {number}", range(9)), NAMES) for number in range(30)]
    assert max(turns.count(name) for name in NAMES) <= 11


steps = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["send", "began", "ended", "settled", "lost"])), max_size=60
)


@given(steps, st.sampled_from([CacheAware(), LeastLoaded(), RoundRobin(), Sticky()]))
def test_accounts_add_up_and_end_empty(told: list[tuple[int, str]], policy: RoutePolicy) -> None:
    one, _ = router(policy)
    under_way: dict[str, str] = {}
    for turn, (number, what) in enumerate(told):
        rid = str(number)
        if what == "send" and rid not in under_way:
            under_way[rid] = one.send(request(rid, range(number, number + 13), key=rid), NAMES)
        elif what == "ended":
            one.ended(rid)
            under_way.pop(rid, None)
        elif what == "lost":
            name = NAMES[turn % 3]
            one.lost(name)
            for other in [rid for rid, at in under_way.items() if at == name]:
                one.ended(other)
                del under_way[other]
        elif what == "began":
            one.began(rid)
        else:
            one.settled(rid)
        seen = one.view(request("x", range(50, 60)), NAMES)
        assert [replica.running for replica in seen] == [list(under_way.values()).count(name) for name in NAMES]
        assert all(replica.waiting_tokens >= 0 for replica in seen)
    for rid in under_way:
        one.ended(rid)
    for number in range(6):
        one.settled(str(number))
    assert all(
        (replica.running, replica.waiting_tokens) == (0, 0) for replica in one.view(request("x", range(9)), NAMES)
    )
    assert [one.view(request("y", range(n, n + 13)), ["a", "b", "c"])[0].cached_tokens for n in range(6)] == [0] * 6


def test_a_key_stays_with_its_replica_and_moves_only_when_that_goes() -> None:
    policy = Sticky()
    names = [f"r{at}" for at in range(5)]

    def home(key: str, there: Sequence[str]) -> str:
        return there[policy.choose([Replica(name, 0, 0, 0) for name in there], 9, key)]

    keys = [f"session-{at}" for at in range(300)]
    homes = {key: home(key, names) for key in keys}
    assert {names.index(at) for at in homes.values()} == set(range(5)), "all have some"
    left = [name for name in names if name != "r2"]
    for key in keys:
        moved = home(key, left[::-1])
        assert moved == homes[key] or homes[key] == "r2"
