"""The plugins of a process: what they are, what they offer, and the hooks they are called by."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pluggy

from stepwell.abc.sink import Event
from stepwell.discover import Found
from stepwell.errors import ConfigError
from stepwell.offers import Check, Offer
from stepwell.records import BROKEN, FAILED, INVALID, MISSING, OK, UNUSABLE, Record
from stepwell.register import KINDS, SECTION, AnyOffer, contained, hook_of

if TYPE_CHECKING:
    from stepwell.config import Config

T = TypeVar("T")
Key = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """What was put together, for `stepwell_assembled` to judge."""

    registry: Registry
    config: Config
    offers: Mapping[str, Offer[Any]] = field(default_factory=dict)
    """The offer chosen for each section."""


@dataclass(slots=True)
class Plugin:
    """A plugin that was admitted."""

    entry: Found
    module: object
    offers: dict[Key, AnyOffer]
    unusable: dict[Key, str] = field(default_factory=dict)

    @property
    def record(self) -> Record:
        """Its line: unusable only where nothing that it offers can run here."""
        names = tuple(sorted(":".join(key) for key in self.offers))
        state = UNUSABLE if self.offers and len(self.unusable) == len(self.offers) else OK
        reason = "; ".join(f"{':'.join(key)} cannot run here: {why}" for key, why in sorted(self.unusable.items()))
        return self.entry.record(state, reason, names)


class Registry:
    """The plugins of this process: what they are, what they offer, and their life hooks."""

    def __init__(self, manager: pluggy.PluginManager, plugins: Sequence[Plugin], others: Sequence[Record]) -> None:
        self.manager = manager
        self.failures: Counter[str] = Counter()
        """Life hooks that raised, by plugin."""
        self._plugins = {plugin.entry.name: plugin for plugin in plugins}
        self._records = {plugin.entry.name: plugin.record for plugin in plugins}
        self._others = list(others)
        self._offers = {key: (plugin, offer) for plugin in plugins for key, offer in plugin.offers.items()}
        # Bound once: `events` is called while serving.
        self._events = self._callers("stepwell_events")
        self._stopping = self._callers("stepwell_stopping")
        self._log = logging.getLogger("stepwell.plugins")

    # --- what there is ---

    @property
    def records(self) -> tuple[Record, ...]:
        """Every plugin that was found or named, by name."""
        return tuple(sorted([*self._records.values(), *self._others], key=lambda r: (r.name, r.distribution)))

    def record(self, name: str) -> Record | None:
        """The record of a plugin."""
        return next((record for record in self.records if record.name == name), None)

    def offers(self, kind: str) -> dict[str, Offer[Any]]:
        """Offers of a kind by name, sorted, those that cannot run here included."""
        self._known(kind)
        return {name: self._offers[k, name][1] for k, name in sorted(self._offers) if k == kind}

    @property
    def sections(self) -> dict[str, type]:
        """Sections that plugins bind themselves."""
        return {name: offer.config for (kind, name), (_, offer) in self._offers.items() if kind == SECTION}

    def offer(self, kind: str, name: str) -> Offer[Any]:
        """The offer of that name; ConfigError where there is none or it cannot run here."""
        why = self.why_not(kind, name)
        if why is not None:
            raise ConfigError(f"{kind} {name!r}: {why}")
        return self._offers[kind, name][1]

    def owner(self, offer: Offer[Any]) -> Record:
        """The plugin that an offer came from."""
        return next(plugin.record for plugin, one in self._offers.values() if one is offer)

    def why_not(self, kind: str, name: str) -> str | None:
        """Why an offer cannot be had, and which plugin may be to blame; None where it can."""
        self._known(kind)
        if (kind, name) in self._offers:
            plugin = self._offers[kind, name][0]
            return plugin.unusable.get((kind, name))
        suspects = [record for record in self.records if not record.loaded and record.state != MISSING]
        for record in suspects:
            if record.name == name or f"{kind}:{name}" in record.offers:
                return record.sentence
        have = ", ".join(self.offers(kind)) or "none"
        return f"nothing installed offers it{self.blame()}; have {have}"

    def blame(self) -> str:
        """A part of a sentence about what is not there: plugins that failed, and so offer nothing; "" without any."""
        return "".join(f"; {sentence}" for sentence in self.warnings())

    def warnings(self) -> list[str]:
        """One sentence for each plugin that failed, for the start of a process whose config does not need it."""
        return [record.sentence for record in self.records if record.state in FAILED]

    def digest(self) -> str:
        """Of the names and versions of all that is loaded; equal in processes that may talk to each other."""
        lines = [f"{r.name} {r.distribution} {r.version}" for r in self.records if r.loaded]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _known(self, kind: str) -> None:
        if kind not in KINDS:
            raise KeyError(f"{kind} is no kind of offer")

    # --- hooks that are called on request ---

    def commands(self) -> tuple[list[tuple[Record, click.Command]], list[Record]]:
        """Commands of plugins, and a record of each plugin that failed to give them."""
        return self._collect("stepwell_commands", click.Command)

    def benches(self) -> tuple[list[tuple[Record, click.Command]], list[Record]]:
        """Measurements of plugins, and a record of each plugin that failed to give them."""
        return self._collect("stepwell_benches", click.Command)

    def checks(self) -> tuple[list[tuple[Record, Check]], list[Record]]:
        """Checks of plugins, and a record of each plugin that failed to give them."""
        return self._collect("stepwell_checks", Check)

    def _collect(self, hook: str, wanted: type[T]) -> tuple[list[tuple[Record, T]], list[Record]]:
        found: list[tuple[Record, T]] = []
        failed: list[Record] = []
        for record, caller in self._callers(hook):
            try:
                things = [thing for answer in caller() for thing in answer]
            except BaseException as error:
                why = f"{hook}: {contained(error)}"
                failed.append(replace(record, state=BROKEN, reason=why, traceback=traceback.format_exc()))
                continue
            strange = [type(thing).__name__ for thing in things if not isinstance(thing, wanted)]
            if strange:
                failed.append(replace(record, state=INVALID, reason=f"{hook} gave {strange[0]}"))
                continue
            found += [(record, thing) for thing in things]
        return found, failed

    # --- life ---

    def assembled(self, plan: Plan) -> None:
        """All parts are built. A plugin that raises vetoes the start: ConfigError with its words."""
        for record, caller in self._callers("stepwell_assembled"):
            try:
                caller(plan=plan)
            except BaseException as error:
                why = str(error) if isinstance(error, ConfigError) else contained(error)
                raise ConfigError(f"plugin {record.label} refuses the start: {why}") from error

    def events(self, batch: Sequence[Event]) -> None:
        """Hand events to every plugin that wants them; one that raises is counted."""
        for record, caller in self._events:
            self._contain(record, "stepwell_events", lambda: caller(batch=batch))  # noqa: B023 - called at once

    def stopping(self, why: str) -> None:
        """Tell every plugin that the engine stops; one that raises is counted."""
        for record, caller in self._stopping:
            self._contain(record, "stepwell_stopping", lambda: caller(why=why))  # noqa: B023 - called at once

    def _contain(self, record: Record, hook: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self.failures[record.name] += 1
            if self.failures[record.name] == 1:
                text = "plugin %s: %s: %s; further failures of it are only counted"
                self._log.warning(text, record.label, hook, contained(error), exc_info=error)

    def _callers(self, hook: str) -> list[tuple[Record, pluggy.HookCaller]]:
        callers = []
        for name, plugin in sorted(self._plugins.items()):
            caller = hook_of(self.manager, plugin.module, hook)
            if caller is not None:
                callers.append((self._records[name], caller))
        return callers
