"""What a front end may ask of an engine besides requests: statistics, a flush, an audit, a drain, another storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields

from stepwell.cache.cache import CacheStats
from stepwell.engine.attachment import VERBS, Attachment
from stepwell.engine.counting import counted
from stepwell.engine.messages import Control, Reply
from stepwell.engine.parts import Parts
from stepwell.engine.sinks import Sinks
from stepwell.engine.stats import Told
from stepwell.errors import AuditError

AUDIT_AFTER_S = 2.0
"""An engine that has had nothing to do for so long proves its books, once for every time it was busy."""


class Controls:
    """Answers controls between two turns of the loop, when nothing else touches the cache."""

    def __init__(self, parts: Parts, attachment: Attachment, sinks: Sinks) -> None:
        self._parts, self._attachment, self._sinks = parts, attachment, sinks
        self._log = logging.getLogger("stepwell.engine")
        self._asked: list[Control] = []
        self._draining: list[Control] = []
        self._idle_since: float | None = None
        self._audited = True
        self._fault_told = False
        self.audit_failures = 0

    def ask(self, control: Control) -> None:
        """Take a question, to be answered in this turn, or a drain, when all has finished."""
        self._asked.append(control)

    @property
    def pending(self) -> bool:
        """Whether somebody waits for an answer that can be given now."""
        return bool(self._asked)

    def answers(self, now: float, *, idle: bool) -> list[Reply]:
        """Answers that can be given now."""
        asked, self._asked = self._asked, []
        replies = [reply for control in asked if (reply := self._answer(control)) is not None]
        replies += self._attachment.answers()
        if idle and self._draining:
            replies += [Reply(control.id, {"drained": True}) for control in self._draining]
            self._draining.clear()
        self._audit_when_idle(now, idle=idle)
        return replies

    def abandon(self, why: str, deliver: Callable[[Sequence[Reply]], None]) -> None:
        """The engine ends: nothing that was asked will be answered."""
        left = [*self._asked, *self._draining]
        replies = [*(Reply(control.id, error=why) for control in left), *self._attachment.abandon(why)]
        if replies:
            deliver(replies)

    def values(self) -> dict[str, float]:
        """Counters and gauges by name, for metrics: the brain's, the cache's, the tiers', storage's, the sinks'."""
        cache = self._parts.cache
        values = dict(self._parts.brain.stats())
        values |= {f"pages_{field.name}": float(getattr(cache.stats, field.name)) for field in fields(CacheStats)}
        for tier, usages in cache.usage().items():
            for group, usage in zip(self._parts.runner.groups, usages, strict=True):
                for kind in ("total", "free", "limbo", "tree_only", "held"):
                    values[f"{tier.value}_pages_{kind}.{group.name}"] = float(getattr(usage, kind))
        values |= {f"runner_{name}": value for name, value in counted(self._parts.runner).items()}
        values["audit_failures"] = float(self.audit_failures)
        values |= self._sinks.values()
        return values | self._attachment.values()

    def told(self) -> Told:
        """What the brain counts and is no plain number. The first fault of a policy is also logged."""
        told = self._parts.brain.counters.told()
        if told.last_fault and not self._fault_told:
            self._fault_told = True
            self._log.warning(
                "a policy gave an answer that cannot be used, and the default was taken: %s;"
                " further ones are only counted, as policy_faults",
                told.last_fault,
            )
        return told

    def _answer(self, control: Control) -> Reply | None:
        match control.verb:
            case "stats":
                return Reply(control.id, self.values() | self.told().spelled())
            case "flush":
                self._parts.cache.flush()
                return Reply(control.id, {"flushed": True})
            case "audit":
                wrong = self._audit()
                return Reply(control.id, {"clean": True}) if wrong is None else Reply(control.id, error=wrong)
            case "drain":
                self._parts.brain.drain()
                self._draining.append(control)
                return None
            case verb if verb in VERBS:
                self._attachment.ask(control)
                return None
            case verb:
                have = ", ".join(("stats", "flush", "audit", "drain", *VERBS))
                return Reply(control.id, error=f"{verb!r} is no verb; have {have}")

    def _audit(self) -> str | None:
        try:
            self._parts.cache.audit()
        except AuditError as error:
            self.audit_failures += 1
            self._log.error("the cache's books are wrong: %s", error)
            return str(error)
        return None

    def _audit_when_idle(self, now: float, *, idle: bool) -> None:
        if not idle:
            self._idle_since, self._audited = None, False
        elif self._idle_since is None:
            self._idle_since = now
        elif not self._audited and now - self._idle_since >= AUDIT_AFTER_S:
            self._audited = True
            self._audit()
