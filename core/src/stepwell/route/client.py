"""One client for several engines: each request goes to the one that a policy chooses, a question to all of them.

A front end sees one engine that serves as long as any of them does. What a replica has cached it tells by its KV
events; one that is lost is left out, its requests end with an error as with a single engine, and it comes back empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from stepwell.abc.route import RoutePolicy
from stepwell.engine.client import EngineLost, Member, Outputs
from stepwell.engine.contain import Faults
from stepwell.engine.messages import Hello, KvEvents, Output, Pulse, events_of
from stepwell.errors import StepwellError
from stepwell.route.merge import hello_of, merged, pulse_of
from stepwell.route.prefix_index import PrefixIndex
from stepwell.route.router import Router
from stepwell.schedule.request import Request

HEARD_S = 3.0
"""A replica whose serving loop was not heard for so long gets no requests while another was."""
SETTLE_S = 1.0
"""After its end a request's prompt counts as cached for so long, until the events that say so have come."""


class RoutedClient:
    """A `Client` over several members, by name. Belongs to the event loop on which it is made."""

    def __init__(self, members: Mapping[str, Member], policy: RoutePolicy) -> None:
        """At least one of the members serves already; others may join later. They serve the same model."""
        self._members = dict(members)
        hello = self._hellos()[0]
        self._page = hello.page_size
        self._index = PrefixIndex(hello.page_size, hello.needs)
        self._router = Router(policy, self._index, fault=Faults())
        self._unread = 0
        """Messages with events that no engine of ours sends."""
        self._owner: dict[str, str] = {}
        self._lost = {name: member.restarts for name, member in members.items()}
        for name, member in members.items():
            member.follow(self._heard(name))

    @property
    def members(self) -> Mapping[str, Member]:
        """All of them by name, whether they serve or not."""
        return self._members

    @property
    def hello(self) -> Hello:
        """What all of them are; digests are asked for, since the choice goes by them."""
        return hello_of(self._hellos())

    @property
    def last_pulse(self) -> Pulse | None:
        """Numbers of those that serve, added up, and the router's own; None before the first sign of life."""
        pulses = [pulse for _, one in self._serving() if (pulse := one.last_pulse) is not None]
        if not pulses:
            return None
        pulse = pulse_of(pulses)
        pulse.values.update(self._values())
        return pulse

    @property
    def why_down(self) -> str:
        """Why none of them serves; empty while one does."""
        return "" if self._serving() else next(iter(self._members.values())).why_down

    @property
    def restarts(self) -> int:
        """How often an engine was lost so far."""
        return sum(member.restarts for member in self._members.values())

    @property
    def down(self) -> dict[str, str]:
        """Those that do not serve, and why."""
        return {name: why for name, member in self._members.items() if (why := member.why_down)}

    def alive(self, within_s: float = 1.5) -> bool:
        """Whether any of them was heard in the last `within_s` seconds."""
        return any(member.alive(within_s) for member in self._members.values())

    async def submit(self, request: Request) -> Outputs:
        """Send a request to the member that the policy chooses. Never raises."""
        if request.rid in self._owner:
            outputs = Outputs(request.rid, lambda rid: None)
            text = f"a request {request.rid!r} is in flight already"
            outputs.put(Output(request.rid, finish="refused", error=text))
            return outputs
        self._forget_lost()
        serving = self._serving()
        if not serving:
            return await next(iter(self._members.values())).submit(request)
        heard = [name for name, member in serving if member.alive(HEARD_S)] or [name for name, _ in serving]
        name = self._router.send(request, heard)
        self._owner[request.rid] = name
        try:
            outputs = await self._members[name].submit(request)
        except BaseException:
            self._ended(request.rid)
            raise
        outputs.watch(self._router.began, self._ended)
        return outputs

    async def abort(self, rid: str, finish: str = "abort") -> None:
        """End a request; its last output still comes."""
        name = self._owner.get(rid)
        if name is not None:
            await self._members[name].abort(rid, finish)

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Ask all that serve. The answer is theirs, merged, with each one's own under `groups`, by name.

        Verbs that concern storage are asked of one after another, since groups may share it. Where any raises, that is
        raised once all have answered, and says which it was. One that is down is in `groups` with why.
        """
        serving = self._serving()
        if not serving:
            raise EngineLost(self.why_down)

        def ask(member: Member) -> Awaitable[dict[str, object]]:
            return member.control(verb, timeout_s, given)

        members = [member for _, member in serving]
        answers = await (_in_turn if verb.startswith("storage") else _at_once)(ask, members)
        groups: dict[str, object] = {name: {"down": why} for name, why in self.down.items()}
        good: list[dict[str, object]] = []
        for (name, _), answer in zip(serving, answers, strict=True):
            if isinstance(answer, StepwellError):
                raise type(answer)(f"group {name}: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer
            groups[name] = answer
            good.append(answer)
        own: dict[str, object] = dict(self._values()) if verb == "stats" else {}
        return merged(good) | own | {"groups": dict(sorted(groups.items()))}

    async def close(self) -> None:
        """Leave all of them."""
        await asyncio.gather(*(member.close() for member in self._members.values()))

    # --- members -----------------------------------------------------------------------------------------------

    def _serving(self) -> list[tuple[str, Member]]:
        return [(name, member) for name, member in self._members.items() if not member.why_down]

    def _hellos(self) -> list[Hello]:
        """Of those that serve; of the first that ever did, where none does now."""
        serving = self._serving() or [one for one in self._members.items() if one[1].restarts]
        return [member.hello for _, member in serving]

    def _heard(self, name: str) -> Callable[[KvEvents], None]:
        member = self._members[name]

        def take(message: KvEvents) -> None:
            if self._members.get(name) is not member:
                return  # it was let go, and nothing is kept of it
            self._forget_lost()  # before a member that came back tells what it has, not at the request after that
            try:
                events = events_of(message, self._page)
            except ValueError:  # what is known may be wrong from here on; the next message shows that one is missing
                self._unread += 1
                self._index.forget(name)
                return
            if not self._index.apply(name, events, message.number):
                member.follow(take)

        return take

    def _forget_lost(self) -> None:
        """A member that was lost since the last look has nothing any more."""
        for name, member in self._members.items():
            if member.restarts != self._lost[name]:
                self._lost[name] = member.restarts
                self._router.lost(name)

    def _ended(self, rid: str) -> None:
        if self._owner.pop(rid, None) is not None:
            self._router.ended(rid)
            asyncio.get_running_loop().call_later(SETTLE_S, self._router.settled, rid)

    def _values(self) -> dict[str, float]:
        return {
            "route_faults": float(self._router.faults),
            "route_pages": float(len(self._index)),
            "route_pages_unnoted": float(self._index.unnoted),
            "route_gaps": float(self._index.gaps),
            "route_unread": float(self._unread),
        }


async def _at_once(
    ask: Callable[[Member], Awaitable[dict[str, object]]], members: Sequence[Member]
) -> list[dict[str, object] | BaseException]:
    return await asyncio.gather(*(ask(member) for member in members), return_exceptions=True)


async def _in_turn(
    ask: Callable[[Member], Awaitable[dict[str, object]]], members: Sequence[Member]
) -> list[dict[str, object] | BaseException]:
    answers: list[dict[str, object] | BaseException] = []
    for member in members:
        try:
            answers.append(await ask(member))
        except StepwellError as error:
            answers.append(error)
    return answers
