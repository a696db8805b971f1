"""The replicas that an ingress is connected to: they come, go and die, and requests notice as little as can be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from stepwell.abc.route import RoutePolicy
from stepwell.assemble import Assembly
from stepwell.engine.client import EngineClient, Member, Outputs
from stepwell.engine.messages import Hello, Output
from stepwell.errors import StepwellError
from stepwell.route.client import RoutedClient
from stepwell.schedule.request import Request
from stepwell_ray.where import Where

JOIN_S = 10.0
TRIES = 4
"""Replicas to which one request is sent at most."""
NONE = "no replica serves at the moment"


class Replicas:
    """Keeps connections to what Ray Serve says there is. Belongs to an event loop."""

    def __init__(self, assembly: Assembly, policy: RoutePolicy) -> None:
        self._plugins, self._policy = assembly.registry.digest(), policy
        self._log = logging.getLogger("stepwell.ray")
        self.client: MovingClient | None = None
        """As soon as a first replica was joined."""

    async def update(self, there: Sequence[Where], *, whole: bool) -> None:
        """Join replicas that are new, and let go of those that are no more. `whole`: all that there are answered."""
        known = self.client.members if self.client is not None else {}
        new = [where for where in there if where["name"] not in known]
        await asyncio.gather(*(self._join(where) for where in new))
        if self.client is not None:
            listed = {where["name"] for where in there}
            for name, member in dict(self.client.members).items():
                if name not in listed and (whole or member.why_down):
                    await self.client.let_go(name)

    async def close(self) -> None:
        """Leave all of them."""
        if self.client is not None:
            await self.client.close()

    async def _join(self, where: Where) -> None:
        try:
            engine = await EngineClient.connect(
                where["address"], plugins=self._plugins, timeout_s=JOIN_S, server_key=where["key"]
            )
        except StepwellError as error:  # it may have died meanwhile; if not, the next look finds it again
            self._log.warning("replica %s cannot be joined: %s", where["name"], error)
            return
        if self.client is None:
            self.client = MovingClient({where["name"]: engine}, self._policy)
        else:
            self.client.add(where["name"], engine)
        self._log.info("replica %s joined", where["name"])


class MovingClient(RoutedClient):
    """A routed client whose members come and go, and that sends what had not begun to another."""

    def __init__(self, members: Mapping[str, Member], policy: RoutePolicy) -> None:
        self._leaving: set[str] = set()
        super().__init__(members, policy)
        self._carrying: dict[str, asyncio.Task[None]] = {}
        self._last_hello = super().hello
        self._gone = 0

    @property
    def hello(self) -> Hello:
        """What all of them are, or the last of them was."""
        if self._serving():
            self._last_hello = super().hello
        return self._last_hello

    @property
    def why_down(self) -> str:
        """Why none serves; empty while one does."""
        return "" if self._serving() else next((why for why in self.down.values()), NONE)

    @property
    def restarts(self) -> int:
        """How often a replica was lost so far."""
        return self._gone + super().restarts

    def add(self, name: str, member: Member) -> None:
        """Send requests to one more."""
        self._members[name] = member
        self._lost[name] = member.restarts
        member.follow(self._heard(name))

    async def let_go(self, name: str) -> None:
        """Send no more requests to one; it is left once those under way there have ended."""
        self._leaving.add(name)
        member = self._members[name]
        if name in self._owner.values() and not member.why_down:
            return  # asked again at the next look
        self._gone += member.restarts
        del self._members[name], self._lost[name]
        self._router.lost(name)
        self._leaving.discard(name)
        await member.close()

    async def submit(self, request: Request) -> Outputs:
        """Send a request to the member that the policy chooses. Never raises."""
        outputs = Outputs(request.rid, self._drop)
        if request.rid in self._carrying:
            text = f"a request {request.rid!r} is in flight already"
            outputs.put(Output(request.rid, finish="refused", error=text))
            return outputs
        self._carrying[request.rid] = asyncio.create_task(self._contained(request, outputs))
        return outputs

    async def close(self) -> None:
        """Leave all of them."""
        await super().close()

    # --- one request -------------------------------------------------------------------------------------------

    async def _contained(self, request: Request, outputs: Outputs) -> None:
        """Whatever goes wrong here, who asked is told."""
        try:
            await self._carry(request, outputs)
        except Exception as error:
            logging.getLogger("stepwell.ray").exception("request %s", request.rid)
            self._put(outputs, Output(request.rid, finish="error", error=f"{type(error).__name__}: {error}"))

    async def _carry(self, request: Request, outputs: Outputs) -> None:
        """Pass on what comes of a request; begin again elsewhere where its replica went before it said anything."""
        for left in reversed(range(TRIES)):
            if not self._serving():
                break
            inner = await super().submit(request)
            name = self._owner.get(request.rid)
            try:
                if await self._pass_on(inner, outputs, name if left else None):
                    return
            finally:
                inner.close()
        self._put(outputs, Output(request.rid, finish="error", error=self.why_down or NONE))

    async def _pass_on(self, inner: Outputs, outputs: Outputs, name: str | None) -> bool:
        """False: nothing came but word that the replica `name` does not serve any more, and another does."""
        begun = False
        async for output in inner:
            if not begun and name is not None and self._can_move(output, name):
                return False
            begun = True
            self._put(outputs, output)
        return True

    def _put(self, outputs: Outputs, output: Output) -> None:
        """An output for who asked; with the last one the name of the request is free again."""
        if output.finish is not None:
            self._carrying.pop(outputs.rid, None)
        outputs.put(output)

    def _can_move(self, output: Output, name: str) -> bool:
        if output.tokens or not (output.finish == "error" or (output.finish == "refused" and output.later)):
            return False
        member = self._members.get(name)
        left = member is None or bool(member.why_down) or name in self._leaving
        return left and any(other != name for other, _ in self._serving())

    def _drop(self, rid: str) -> None:
        """Nobody wants the answer any more."""
        task = self._carrying.pop(rid, None)
        if task is not None:
            task.cancel()

    def _serving(self) -> list[tuple[str, Member]]:
        return [one for one in super()._serving() if one[0] not in self._leaving]
