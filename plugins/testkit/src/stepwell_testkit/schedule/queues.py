"""Queues and batches for schedule policies, out of dice."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import islice
from typing import Any, TypeVar

from stepwell import RunningView, WaitingView
from stepwell_testkit.schedule.views import KitRequest, KitRunning, KitView

T = TypeVar("T")

PAGE = 16
ENDLESS = 10_000
"""More than there can be in an answer."""


def queue_of(dice: random.Random, size: int) -> tuple[list[WaitingView], KitView]:
    """Requests in their order of arrival, and what a policy may ask about them."""
    waiting: list[WaitingView] = [request_of(dice, order, order) for order in range(size)]
    return waiting, KitView(hits_of(dice, waiting), batch_of(dice, 5))


def hits_of(dice: random.Random, waiting: list[WaitingView]) -> dict[str, int]:
    """What is cached of each."""
    return {request.rid: dice.randrange(0, request.length, PAGE) for request in waiting}


def request_of(dice: random.Random, order: int, arrival: float, **said: Any) -> KitRequest:
    """One that waits; what is not said of it is up to the dice."""
    request = KitRequest(
        order,
        rid=rid_of(order),
        arrival=float(arrival),
        length=PAGE * dice.randint(1, 64),
        max_new=dice.randint(1, 256),
        priority=dice.choice([0, 0, 0, 1, -1]),
        routing_key=dice.choice([None, "a", "b", "c"]),
        tenant=dice.choice([None, "t", "u"]),
    )
    return replace(request, **said)


def batch_of(dice: random.Random, size: int, first: int = 10_000) -> list[RunningView]:
    """Requests that run, in the order of their admission, some with a part of their prompt to go."""
    return [
        KitRunning(
            first + order,
            rid=f"running-{first + order}",
            arrival=float(order),
            length=PAGE * dice.randint(1, 64),
            max_new=dice.randint(100, 200),
            priority=dice.randrange(3),
            routing_key=dice.choice([None, "a", "b"]),
            tenant=dice.choice([None, "t", "u"]),
            retractions=dice.choice([0, 0, 1, 2]),
            generated=dice.randrange(100),
            pages=dice.randrange(1, 50),
            unplanned=dice.choice([0, 0, 5, 300]),
        )
        for order in range(size)
    ]


def running_of(request: WaitingView) -> KitRunning:
    """One that waited, as it has been admitted just now."""
    held = {one.name: getattr(request, one.name) for one in fields(KitRequest)}
    return KitRunning(**held, pages=-(-request.length // PAGE), unplanned=request.length)


def waiting_of(running: RunningView) -> KitRequest:
    """One that ran, as it is back in the queue: what it generated is part of its prompt now."""
    held = {one.name: getattr(running, one.name) for one in fields(KitRequest)}
    return KitRequest(**held | {"length": running.length + running.generated, "retractions": running.retractions + 1})


def odd_of(dice: random.Random, size: int, bound: int) -> list[WaitingView]:
    """Requests of which everything is as odd as it may be."""
    return [
        KitRequest(
            order,
            rid=dice.choice(["", "x" * 1000, "\0", rid_of(order)]) + str(order),
            arrival=dice.choice([0.0, 1e-9, 1e12]),
            length=dice.choice([1, 2, 10**7]),
            max_new=dice.choice([0, 1, 10**7]),
            priority=dice.choice([-(2**31), -1, 0, 2**31]),
            routing_key=dice.choice([None, "", "ключ"]),
            tenant=dice.choice([None, "", "t"]),
            passes=dice.choice([0, bound, 10**6]),
            retractions=dice.choice([0, 3, 10**6]),
        )
        for order in range(size)
    ]


def rid_of(order: int) -> str:
    """Names whose order as text is not the order of arrival."""
    return f"{order * 7919 % 1000:03d}-{order}"


def whole(answer: Iterable[T]) -> list[T]:
    """An answer read to its end, which has to be there."""
    read = list(islice(answer, ENDLESS))
    assert len(read) < ENDLESS, "an answer has no end"
    return read
