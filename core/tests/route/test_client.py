"""Engines behind one client: they answer as one does, and what each has cached is known long after it was asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from stepwell.abc.sink import PagesStored
from stepwell.assemble import Assembly
from stepwell.builtin.routers import CacheAware
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config
from stepwell.engine.client import Client, Outputs
from stepwell.engine.local import LocalClient, LocalEngine
from stepwell.engine.messages import Hello, KvEvents, KvRun, Output, Pulse, kv_events
from stepwell.plugins import load
from stepwell.route import client as routed
from stepwell.route.client import RoutedClient
from stepwell.route.merge import pulse_of
from stepwell.schedule.request import Request
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Sampling, Tier

PAGE = 4
SESSIONS, TURNS = 6, 4
Turn = tuple[tuple[int, ...], int]
"""The tokens of an answer, and how many of its prompt were cached."""


def engine(pages: int, **settings: object) -> LocalEngine:
    own = {"runner.use": "sim", "cache.page_size": PAGE, "cache.device_pages": pages}
    config = Config.load(None, {"HOME": "/nonexistent"}, extra={**own, **settings})
    return LocalEngine(Assembly(config, load(only=())).parts)


def asked(rid: str, tokens: Sequence[int], hello: Hello) -> Request:
    space, told = namespace(hello.namespace), np.array(tokens, np.int32).tobytes()
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    digests = page_digests(space, told, hello.page_size)
    return Request(rid=rid, namespace=space, tokens=told, digests=digests, sampling=sampling)


async def answered(client: Client, request: Request) -> Turn:
    tokens: tuple[int, ...] = ()
    async for output in await client.submit(request):
        tokens += tuple(output.tokens)
        last = output
    assert last.finish == "length", last
    return tokens, last.cached.total


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def conversations(client: Client, told: Callable[[Request], bool] = lambda request: True) -> list[list[Turn]]:
    """Sessions that share one of two beginnings, a turn of all at a time; `told`: whether its pages are known of."""
    draw = random.Random(7)
    begins = [[draw.randrange(200) for _ in range(80)] for _ in range(2)]
    texts = [list(begins[at % 2]) for at in range(SESSIONS)]
    turns: list[list[Turn]] = []
    for turn in range(TURNS):
        for text in texts:
            text += [draw.randrange(200) for _ in range(draw.randrange(10, 40))]
        done = []
        for at, text in enumerate(texts):
            request = asked(f"{turn}-{at}", text, client.hello)
            done.append(await answered(client, request))
            await until(partial(told, request))
        for text, (tokens, _) in zip(texts, done, strict=True):
            text += tokens
        turns.append(done)
    return turns


@pytest.mark.parametrize("settings", [{}, {"runner.windows": (24,)}], ids=["full", "hybrid"])
def test_two_engines_answer_and_hit_as_one_that_is_as_large_as_both(
    settings: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no account of what was sent lately: all that is known is what the engines tell."""
    monkeypatch.setattr(routed, "SETTLE_S", 0.0)

    async def both() -> tuple[list[list[Turn]], list[list[Turn]], dict[str, object]]:
        alone = LocalClient(engine(800, **settings))
        expected = await conversations(alone)
        await alone.close()
        client = RoutedClient({name: LocalClient(engine(400, **settings)) for name in "ab"}, CacheAware())

        def told(request: Request) -> bool:
            whole = len(request.digests) // DIGEST_BYTES
            pages = [request.digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] for at in range(whole)]
            return max(client._index.cached(pages, "ab")) == whole * PAGE

        found = await conversations(client, told)
        stats = await client.control("stats")
        await client.close()
        return expected, found, stats

    expected, found, stats = asyncio.run(both())
    assert [[tokens for tokens, _ in turn] for turn in found] == [[tokens for tokens, _ in turn] for turn in expected]
    hits, most = (sum(cached for turn in turns for _, cached in turn) for turns in (found, expected))
    assert hits >= 0.95 * most > 0, (hits, most)
    groups = stats["groups"]
    assert isinstance(groups, dict) and all(group["finished"] > 0 for group in groups.values()), "both have some"
    assert stats["route_gaps"] == stats["route_faults"] == 0


class Member:
    """A member that a test kills, and has tell what it likes."""

    def __init__(self, hello: Hello) -> None:
        self.hello, self.restarts, self.why_down = hello, 0, ""
        self.last_pulse: Pulse | None = None
        self.tell: Callable[[KvEvents], None] = lambda message: None
        self.got: list[str] = []

    def alive(self, within_s: float = 1.5) -> bool:
        return not self.why_down

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        self.tell = take

    async def submit(self, request: Request) -> Outputs:
        self.got.append(request.rid)
        outputs = Outputs(request.rid, lambda rid: None)
        outputs.put(Output(request.rid, finish="length"))
        return outputs

    async def abort(self, rid: str, finish: str = "abort") -> None: ...

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        return {}

    async def close(self) -> None: ...


HELLO = Hello("m", 4096, 257, (0,), PAGE, {"model": "m"}, False, "", groups={"full": ("full", 0)})


def test_what_a_member_tells_that_came_back_is_kept() -> None:
    """It tells all it has before anybody asks for anything."""
    request = asked("r", range(400), HELLO)
    keys = [request.digests[at : at + DIGEST_BYTES] for at in range(0, len(request.digests), DIGEST_BYTES)]
    stored = PagesStored(Tier.DEVICE, "full", tuple(key + bytes(TAG_BYTES) for key in keys), None, PAGE)

    async def lost_and_back() -> tuple[Member, Member]:
        a, b = Member(HELLO), Member(HELLO)
        client = RoutedClient({"a": a, "b": b}, CacheAware())
        b.restarts = 1
        b.tell(kv_events(0, [stored]))
        await client.submit(request)
        return a, b

    a, b = asyncio.run(lost_and_back())
    assert (a.got, b.got) == ([], ["r"])


@pytest.mark.parametrize("run", [KvRun("attic", "full", True), KvRun("device", "full", True, b"half a key")])
def test_what_a_member_tells_that_makes_no_sense_is_counted_and_all_it_told_forgotten(run: KvRun) -> None:
    """The message after that shows that one is missing, so that the member is asked for all it has."""
    stored = PagesStored(Tier.DEVICE, "full", (bytes(DIGEST_BYTES + TAG_BYTES),), None, PAGE)

    async def told() -> tuple[list[float], int]:
        member = Member(HELLO)
        client = RoutedClient({"a": member}, CacheAware())
        tell, known = member.tell, []
        for message in (kv_events(0, [stored]), KvEvents(1, (run,)), kv_events(2, [])):
            member.tell = _nothing
            tell(message)
            known.append(client._values()["route_pages"])
        assert member.tell is not _nothing, "it is followed anew"
        return known, int(client._values()["route_unread"])

    assert asyncio.run(told()) == ([1, 0, 0], 1)


def _nothing(message: KvEvents) -> None: ...


def test_shares_and_worsts_of_replicas_are_no_sums() -> None:
    pulses = [Pulse(1, 0, 0, {"a_used": used, "a_worst": worst, "a": 1.0}) for used, worst in ((0.5, 2.0), (0.9, 3.0))]
    assert pulse_of(pulses).values == {"a_used": 0.5, "a_worst": 3.0, "a": 2.0}
