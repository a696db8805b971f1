"""Whether the server can serve, from signs of life of the engine's serving loop alone.

Answers and traffic prove nothing: a long prefill gives none for a while, and a front end answers
while its engine is dead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from stepwell.route.client import RoutedClient
from stepwell_server.port import Engine

SETTLE_S = 0.05


class Report(msgspec.Struct, omit_defaults=True):
    """Body of the health routes."""

    status: str
    reason: str = ""
    running: int | None = None
    waiting: int | None = None
    down: dict[str, str] = {}
    """Of several groups those that do not serve, and why; the others do."""


@dataclass(frozen=True, slots=True)
class Health:
    """The engine's state as the front end sees it."""

    live: bool
    ready: bool
    report: Report


def judge(engine: Engine | None, pulse_s: float, starting: str) -> Health:
    """What can be said now. `starting`: why there is no engine yet."""
    if engine is None:
        return Health(False, False, Report("starting", starting))
    if not engine.alive(pulse_s):
        why = engine.why_down or f"the engine's serving loop was not heard for {pulse_s:g} s"
        return Health(False, False, Report("down", why))
    pulse = engine.last_pulse
    running, waiting = (pulse.running, pulse.waiting) if pulse else (None, None)
    if pulse is not None and pulse.values.get("draining"):
        return Health(True, False, Report("draining", "the server is stopping", running, waiting))
    down = engine.down if isinstance(engine, RoutedClient) else {}
    return Health(True, True, Report("ok", "", running, waiting, down))


async def checked(engine: Engine | None, pulse_s: float, starting: str) -> Health:
    """The same; a pulse that lies unread because this process was busy gets the time to be read."""
    health = judge(engine, pulse_s, starting)
    if engine is not None and not health.live and not engine.why_down:
        await asyncio.sleep(SETTLE_S)
        health = judge(engine, pulse_s, starting)
    return health
