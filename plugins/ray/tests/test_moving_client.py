"""Requests and the replicas that leave under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stepwell.abc.route import Replica, RoutePolicy
from stepwell.engine.client import Outputs
from stepwell.engine.messages import Hello, KvEvents, KvRun, Output, Pulse
from stepwell.schedule.request import Request
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Sampling
from stepwell_ray.replicas import MovingClient

HELLO = Hello("well", 4096, 257, (), 16, {"model": "a"}, False, "x", groups={"full": ("full", 0)})


class Scripted:
    """A member whose answers the test gives."""

    def __init__(self) -> None:
        self.hello, self.restarts, self.why_down = HELLO, 0, ""
        self.asked: dict[str, Outputs] = {}
        self.aborted: list[str] = []
        self.closed = False

    @property
    def last_pulse(self) -> Pulse | None:
        return None

    def alive(self, within_s: float = 1.5) -> bool:
        return not self.why_down

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        self.take = take

    async def submit(self, request: Request) -> Outputs:
        self.asked[request.rid] = Outputs(request.rid, self.aborted.append)
        return self.asked[request.rid]

    async def abort(self, rid: str, finish: str = "abort") -> None:
        self.aborted.append(rid)

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        self.closed = True

    def die(self) -> None:
        self.why_down, self.restarts = "the engine's process ended", self.restarts + 1
        for rid, outputs in self.asked.items():
            outputs.put(Output(rid, finish="error", error=self.why_down))


class First(RoutePolicy):
    def choose(self, replicas: list[Replica], length: int, routing_key: str | None) -> int:
        return 0


def request(rid: str = "r") -> Request:
    return Request(rid=rid, namespace=b"n", tokens=b"\0" * 80, digests=b"", sampling=Sampling())


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def rest(outputs: Outputs) -> list[Output]:
    return [output async for output in outputs]


def test_what_had_not_begun_goes_to_another_replica() -> None:
    async def run() -> None:
        one, two = Scripted(), Scripted()
        client = MovingClient({"one": one, "two": two}, First())
        outputs = await client.submit(request())
        await settled()
        assert (set(one.asked), set(two.asked)) == ({"r"}, set())
        one.die()
        await settled()
        two.asked["r"].put(Output("r", (7,), finish="length"))
        assert [(output.tokens, output.finish) for output in await rest(outputs)] == [((7,), "length")]

    asyncio.run(run())


def test_what_had_begun_ends_with_its_replica() -> None:
    async def run() -> None:
        one, two = Scripted(), Scripted()
        client = MovingClient({"one": one, "two": two}, First())
        outputs = await client.submit(request())
        await settled()
        one.asked["r"].put(Output("r", (7,)))
        await settled()
        one.die()
        assert [output.finish for output in await rest(outputs)] == [None, "error"]
        assert not two.asked

    asyncio.run(run())


def test_an_engine_that_fails_a_request_and_lives_is_not_asked_again_elsewhere() -> None:
    async def run() -> None:
        one, two = Scripted(), Scripted()
        client = MovingClient({"one": one, "two": two}, First())
        outputs = await client.submit(request())
        await settled()
        one.asked["r"].put(Output("r", finish="error", error="step 3 failed"))
        assert [output.error for output in await rest(outputs)] == ["step 3 failed"]
        assert not two.asked

    asyncio.run(run())


def test_a_replica_that_leaves_finishes_what_it_has_and_refusals_move_on() -> None:
    async def run() -> None:
        one, two = Scripted(), Scripted()
        client = MovingClient({"one": one, "two": two}, First())
        running, late = await client.submit(request("running")), await client.submit(request("late"))
        await settled()
        await client.let_go("one")
        assert "one" in client.members
        one.asked["late"].put(Output("late", finish="refused", error="the engine stops", later=True))
        one.asked["running"].put(Output("running", (1,), finish="length"))
        await settled()
        two.asked["late"].put(Output("late", (2,), finish="length"))
        assert [output.finish for output in await rest(running) + await rest(late)] == ["length", "length"]
        await settled()
        await client.let_go("one")
        assert one.closed
        assert set(client.members) == {"two"}
        assert (await client.submit(request("next"))).rid == "next"
        await settled()
        assert "next" in two.asked

    asyncio.run(run())


def test_without_any_replica_it_is_down_and_comes_back_with_a_new_one() -> None:
    async def run() -> None:
        one, two = Scripted(), Scripted()
        client = MovingClient({"one": one}, First())
        one.die()
        await client.let_go("one")
        assert client.why_down
        assert client.hello.model == "well"
        assert client.restarts == 1
        assert not client.alive()
        assert client.last_pulse is None
        assert [output.finish for output in await rest(await client.submit(request()))] == ["error"]
        client.add("two", two)
        assert client.why_down == ""
        outputs = await client.submit(request())
        await settled()
        outputs.close()
        await settled()
        assert two.aborted == ["r"]

    asyncio.run(run())


def test_nothing_is_kept_of_replicas_that_left() -> None:
    """Their names are new each time: accounts, events that come late, and how often each was lost."""

    async def run() -> None:
        stays = Scripted()
        client = MovingClient({"stays": stays}, First())
        for number in range(20):
            name, one = f"replica-{number}", Scripted()
            client.add(name, one)
            outputs = await client.submit(request(f"r{number}"))
            await settled()
            stays.asked[f"r{number}"].put(Output(f"r{number}", (1,), finish="length"))
            await rest(outputs)
            one.die()
            await client.let_go(name)
            one.take(KvEvents(0, (KvRun("device", "full", True, bytes(DIGEST_BYTES + TAG_BYTES)),)))
            await settled()
        assert client._router.known == {"stays"}
        assert len(client._index) == 0
        assert set(client._lost) == {"stays"}

    asyncio.run(run())
