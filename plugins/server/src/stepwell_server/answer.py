"""Running what was asked: every choice's outputs as they come, and an end for each, however the answer ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from stepwell.engine.client import Client, Outputs
from stepwell.engine.messages import Output
from stepwell_server.choice import Choice, Delta
from stepwell_server.format import Format, Whole, usage_of
from stepwell_server.gate import Gate
from stepwell_server.metrics import Meter
from stepwell_server.prepare import Asked

Steps = AsyncGenerator[tuple[Choice, Delta], None]


class Span:
    """Times the answers of one request and counts them out of the gate."""

    def __init__(self, asked: Asked, gate: Gate, meter: Meter) -> None:
        self._asked, self._gate, self._meter = asked, gate, meter
        self._begin = meter.clock()
        self._first = [0.0] * len(asked.requests)
        self._unbegun = 0

    def enter(self) -> None:
        """Count the answers in; raises ApiError where too many wait already."""
        self._gate.enter(len(self._asked.requests))
        self._unbegun = len(self._asked.requests)

    def output(self, choice: Choice, output: Output) -> None:
        """Note an output that its choice has taken."""
        now = self._meter.clock() - self._begin
        if not self._first[choice.index] and (output.tokens or output.finish):
            self._first[choice.index] = now
            self._unbegun -= 1
            self._gate.leave()
            self._meter.first(now)
        if output.finish is not None:
            prompt = self._asked.prompt_of(choice.index).length
            first = self._first[choice.index]
            self._meter.ended(choice.finish or "", prompt, choice.cached, choice.tokens, first, now)

    def close(self) -> None:
        """Whatever has not begun will not."""
        self._gate.leave(self._unbegun)
        self._unbegun = 0


async def run(asked: Asked, choices: Sequence[Choice], client: Client, span: Span) -> Steps:
    """Submit all requests and give what they add to their choices until all have ended.

    Raises ApiError as soon as one of them has no answer. Whoever stops reading closes this: that aborts what is left.
    """
    running: list[Outputs] = []
    try:
        span.enter()  # in here, since what never starts is never closed
        for request in asked.requests:
            running.append(await client.submit(request))
        async with aclosing(merge(running)) as outputs:
            async for index, output in outputs:
                choice = choices[index]
                was_over = choice.over
                delta = choice.take(output)
                span.output(choice, output)
                if choice.stopped and not was_over and output.finish is None:
                    await client.abort(output.rid, "stop")  # its last output still comes, with its counts
                if delta.text or delta.scored or delta.finish:
                    yield choice, delta
    finally:
        span.close()
        for one in running:
            one.close()


async def merge(running: Sequence[Outputs]) -> AsyncGenerator[tuple[int, Output], None]:
    """Outputs of several requests with the place of their request; what came meanwhile comes as one.

    So a front end that falls behind its engine sends fewer and larger pieces instead of falling further behind.
    """
    if len(running) == 1:
        async for output in running[0]:
            yield 0, together(output, running[0])
        return
    ready: dict[int, Output] = {}
    news = asyncio.Event()
    left = len(running)
    tasks = [asyncio.create_task(_forward(i, outputs, ready, news)) for i, outputs in enumerate(running)]
    try:
        while left:
            await news.wait()
            news.clear()
            while ready:
                index = next(iter(ready))  # the one that has waited longest
                output = ready.pop(index)
                left -= output.finish is not None
                yield index, output
    finally:
        for task in tasks:
            task.cancel()


async def _forward(index: int, outputs: Outputs, ready: dict[int, Output], news: asyncio.Event) -> None:
    async for output in outputs:
        ready[index] = joined(ready[index], output) if index in ready else output
        news.set()


def together(output: Output, outputs: Outputs) -> Output:
    """An output with all that has come behind it."""
    while (more := outputs.more()) is not None:
        output = joined(output, more)
    return output


def joined(first: Output, second: Output) -> Output:
    """Two outputs of a request as one."""
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (*(first.logprobs or ()), *(second.logprobs or ()))
    return msgspec.structs.replace(second, tokens=first.tokens + second.tokens, logprobs=logprobs)


async def collect(asked: Asked, choices: Sequence[Choice], steps: Steps, form: Format) -> bytes:
    """The whole answer as one body."""
    wholes = [Whole() for _ in choices]
    async with aclosing(steps):
        async for choice, delta in steps:
            wholes[choice.index].add(delta)
    return form.whole(choices, wholes, usage_of(asked, choices))


async def chunks(asked: Asked, choices: Sequence[Choice], steps: Steps, form: Format) -> AsyncGenerator[bytes, None]:
    """The answer as the data of server-sent events, without the closing mark."""
    opened: set[int] = set()
    async with aclosing(steps):
        async for choice, delta in steps:
            if choice.index not in opened:
                opened.add(choice.index)
                first = form.first(choice.index)
                if first is not None:
                    yield first
            yield form.chunk(choice.index, delta)
    if asked.usage:
        yield form.last(usage_of(asked, choices))
