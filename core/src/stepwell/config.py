"""Settings with their origin: dataclass defaults < TOML < environment < `--set` < arguments.

Whoever needs a section binds it to a frozen dataclass; what nobody binds is an error at `finish`. This is the only
file that reads the environment, and only what it is given of it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from stepwell.coerce import Misfit, Piece, Secret, build, parts_of
from stepwell.errors import ConfigError
from stepwell.offers import Capability, Offer, Part, provided
from stepwell.plugins import Registry, load
from stepwell.register import kind_of
from stepwell.settings import CORE_SECTIONS, INSIDE, SECTIONS, UNUSED
from stepwell.shown import Shown, printed, shown_section
from stepwell.sources import (
    DISABLE,
    PLUGINS,
    At,
    FromEnv,
    Origin,
    Setting,
    Settings,
    from_arguments,
    from_environment,
    from_sets,
    from_toml,
    merge,
)
from stepwell.suggest import meant
from stepwell.switches import disabled_by_file, names

__all__ = ["Chosen", "Config", "Origin", "Secret", "Shown", "environment"]

T = TypeVar("T")
DEFAULT = Origin("default")
AUTO = "auto"


@dataclass(frozen=True)
class Chosen:
    """The offer that a section uses, its settings, and who said so."""

    section: str
    offer: Offer[Any]
    settings: Any
    origin: Origin

    @property
    def provides(self) -> frozenset[Capability]:
        """What it can do with these settings."""
        return provided(self.offer, self.settings)


class Config:
    """All settings of one start. Made by `load`; consumed section by section with `bind` and `choose`."""

    def __init__(
        self,
        settings: Settings,
        sections: Mapping[str, Origin],
        environment: Mapping[str, str],
        notes: Sequence[str] = (),
    ) -> None:
        self.notes = list(notes)
        """Sentences for the startup summary: what was ignored, rounded or chosen, and why."""
        self._settings = settings
        self._sections = dict(sections)
        self._environment = environment
        self._bound: dict[str, list[object]] = {}
        self._choices: dict[str, tuple[str, Origin]] = {}
        self._registry: Registry | None = None

    @classmethod
    def load(
        cls,
        path: Path | None,
        env: Mapping[str, str],
        sets: Sequence[str] = (),
        extra: Mapping[str, object] | None = None,
    ) -> Config:
        """Read every source. Nothing is judged yet but syntax."""
        settings, sections = from_toml(Path(path)) if path is not None else ({}, {})
        for source in (from_environment(env, SECTIONS), from_sets(sets), from_arguments(extra or {})):
            merge(settings, source)
        for at, setting in settings.items():
            sections.setdefault(at[0], setting.origin)
        return cls(settings, sections, env)

    def beside(self, section: str, table: Mapping[str, object]) -> Config:
        """A config of this one section, written anew, in the same environment: for what changes after the start."""
        return Config(from_arguments({section: table}), {section: Origin("argument")}, self._environment)

    # --- plugins ---

    @property
    def disabled(self) -> frozenset[str]:
        """Plugins switched off: by $STEPWELL_DISABLE and by `stepwell plugin disable`."""
        return names(self._environment.get(DISABLE, "")) | disabled_by_file(self._environment)

    @property
    def only(self) -> frozenset[str] | None:
        """The only plugins to load beside core's own, by $STEPWELL_PLUGINS; None: all."""
        text = self._environment.get(PLUGINS)
        return None if text is None else names(text)

    def load_plugins(self, distributions: Iterable[importlib.metadata.Distribution] | None = None) -> Registry:
        """Load the plugins that this config does not switch off."""
        return load(disable=self.disabled, only=self.only, distributions=distributions)

    @property
    def cache_dir(self) -> Path:
        """The user's cache folder for Stepwell; ConfigError where there is no home to have one in."""
        env = self._environment
        base = env.get("XDG_CACHE_HOME") or (str(Path(env["HOME"]) / ".cache") if env.get("HOME") else "")
        if not base:
            raise ConfigError("engine.state_dir is not set, and neither is $HOME to choose one")
        return Path(base) / "stepwell"

    # --- reading ---

    def has(self, section: str) -> bool:
        """Whether any source mentions the section."""
        return section in self._sections

    def origin(self, section: str, key: str | None = None) -> Origin:
        """Where a value, or the section, was written."""
        if key is None:
            return self._sections.get(section, DEFAULT)
        return next((s.origin for at, s in self._settings.items() if at[:2] == (section, key)), DEFAULT)

    def error(self, section: str, key: str, why: str) -> ConfigError:
        """An error about one setting, with its origin: `section.key (origin): why`."""
        return ConfigError(f"{self._place(section, (key,))}: {why}")

    def narrow(self, section: str, known: Iterable[str]) -> set[str]:
        """Forget what a section says beyond its `use` and these names: settings of other offers. Returns the names."""
        strange = {at[1] for at in self._settings if at[0] == section} - {"use", *known}
        for at in [at for at in self._settings if at[0] == section and at[1] in strange]:
            del self._settings[at]
        return strange

    def bind(self, section: str, cls: type[T]) -> T:
        """The section as a frozen dataclass; ConfigError for a key it does not know or a value it cannot take."""
        value = self._build(section, (), cls, {})
        self._bound.setdefault(section, []).append(value)
        return value

    def adjust(self, section: str, value: object, notes: Sequence[str]) -> None:
        """What a section comes to after rounding, for `shown`, and why."""
        self._bound[section] = [value]
        self.notes += notes

    def use(self, section: str, default: str) -> str:
        """The name of the offer that the section chooses."""
        setting = self._settings.get((section, "use"))
        if setting is None:
            return default
        if not isinstance(setting.value, str):
            raise self.error(section, "use", f"{printed(setting.value)} is not of type str")
        return str(setting.value)

    @overload
    def choose(self, section: str, kind: str, registry: Registry, default: str) -> Chosen: ...
    @overload
    def choose(self, section: str, kind: str, registry: Registry, default: None = None) -> Chosen | None: ...
    def choose(self, section: str, kind: str, registry: Registry, default: str | None = None) -> Chosen | None:
        """The offer that the section uses, with its settings bound.

        Without a default a section that nobody mentions chooses nothing: None.
        """
        self._registry = registry
        name = self.use(section, default or "")
        if not name:
            if self.has(section):
                have = ", ".join(registry.offers(kind)) or "none"
                raise ConfigError(f"{section}.use is required and not set; have {have}")
            return None
        origin = self.origin(section, "use")
        part = self._part(section, (), kind, registry, name)
        self._choices[section] = name, origin
        self._bound.setdefault(section, []).append(part.settings)
        return Chosen(section, part.offer, part.settings, origin)

    def choose_inside(self, section: str, at: At, kind: str, registry: Registry, name: str) -> Part[Any]:
        """The offer `name` with its settings as they stand below a setting of a section; the rest is not looked at."""
        return self._part(section, at, kind, registry, name)

    def choose_runner(self, registry: Registry) -> Chosen:
        """The runner: as the config says; unset, the only one beside `sim`; `auto` falls back to `sim` with a note."""
        asked = self.use("runner", "")
        if asked not in ("", AUTO):
            return self.choose("runner", "runner", registry, asked)
        usable = [name for name in registry.offers("runner") if registry.why_not("runner", name) is None]
        real = [name for name in usable if name != "sim"]
        if len(real) > 1 or (not real and not asked):
            blame = "".join(f"; {text}" for text in registry.warnings())
            raise ConfigError(f"runner.use is required and not set; have {', '.join(usable) or 'none'}{blame}")
        name = real[0] if real else "sim"
        self._settings["runner", "use"] = Setting(name, Origin("chosen automatically"))
        self.notes.append(f"runner.use = {name!r} was chosen automatically")
        return self.choose("runner", "runner", registry, name)

    def finish(self, registry: Registry | None = None) -> None:
        """Every section has to have been read by somebody: ConfigError for one that no part knows.

        A section that a plugin binds itself is judged here as well, since that may be in another process. A known
        section that this start does not use, and one of a plugin that is not loaded, is a note.
        """
        self._registry = registry = registry or self._registry
        for section, origin in self._sections.items():
            if section in self._bound:
                continue
            record = registry.record(section) if registry else None
            if record and not record.loaded:
                self.notes.append(f"[{section}] ({origin}) is ignored: {record.sentence}")
            elif registry and section in registry.sections:
                self._judge(section, registry.sections[section])
            elif record or section in SECTIONS:
                self.notes.append(f"[{section}] ({origin}) is ignored: {UNUSED.get(section, 'nothing here uses it')}")
            elif section in INSIDE:
                raise ConfigError(f"{section} ({origin}): no section of its own; write [{INSIDE[section]}]")
            else:
                raise ConfigError(f"{section} ({origin}): no such section{meant(section, self._known_sections())}")

    def shown(self) -> list[Shown]:
        """Every setting with its value and origin: of bound sections all, of others what was written."""
        lines: list[Shown] = []
        for section in sorted({*self._bound, *self._sections}, key=_rank):
            setting = self._settings.get((section, "use"))
            if section in self._choices:
                name, origin = self._choices[section]
                lines.append(Shown(section, "use", printed(name), str(origin)))
            elif setting:
                lines.append(Shown(section, "use", printed(setting.value), str(setting.origin)))
            lines += shown_section(section, self._inside(section), self._bound.get(section, ()), DEFAULT)
        return lines

    # --- inside ---

    def _part(
        self, section: str, at: At, kind: str, registry: Registry, name: str, words: Sequence[str] = ()
    ) -> Part[Any]:
        """The offer `name` with its settings below `at`, and with the parts that those settings are made of."""
        if why := registry.why_not(kind, name):
            said = at if at and (section, *at, "use") not in self._settings else (*at, "use")
            also = f"; it may also be {' or '.join(words)}" if words else ""
            raise ConfigError(f"{self._place(section, said, name)}: {why}{also}")
        offer = registry.offer(kind, name)
        parts = {}
        for field, piece in parts_of(offer.config).items():
            inner, own = (*at, field), kind_of(piece.role, kind)
            use = self._part_name(section, inner, piece, list(registry.offers(own)))
            if use:
                parts[field] = self._part(section, inner, own, registry, use, piece.words or ())
        return Part(offer, self._build(section, at, offer.config, parts))

    def _part_name(self, section: str, at: At, piece: Piece, have: Sequence[str]) -> str:
        """The offer that a part uses, written below it or in its place; "" where it need not be one.

        ConfigError where none of those that there are (`have`) is named, and it has to be one.
        """
        words = piece.words or ()
        names = ", ".join([*have, *words])
        path = (section, *at)
        for said in (*at, "use"), at:
            use = self._settings.get((section, *said))
            if use is None:
                continue
            if use.value in words:
                return ""
            if not isinstance(use.value, str):
                raise ConfigError(f"{self._place(section, said)}: {printed(use.value)} is not a name; have {names}")
            if use.value:
                return str(use.value)
        if piece.words is None or any(full[: len(path)] == path != full for full in self._settings):
            raise ConfigError(f"{'.'.join(path)}.use is required and not set; have {names}")
        return ""

    def _build(self, section: str, at: At, cls: type[T], parts: Mapping[str, object]) -> T:
        """What is written below `at` as a dataclass, its parts made already."""
        inside = self._inside(section, at)
        flat = {key: self._resolved(section, (*at, *key), one.value) for key, one in inside.items()}
        table = _nested({key: value for key, value in flat.items() if key[0] not in parts})
        try:
            return build(cls, {**table, **parts})
        except Misfit as why:
            why.at = (*at, *why.at)
            raise self._misfit(section, why) from why.__cause__

    def _judge(self, section: str, cls: type) -> None:
        """Bind for the errors' sake; a secret that only its reader has been given is not missed."""
        secrets = [one.value.name for one in self._inside(section).values() if isinstance(one.value, FromEnv)]
        if set(secrets) <= set(self._environment):
            self.bind(section, cls)

    def _inside(self, section: str, at: At = ()) -> Settings:
        """What is written below `at`, but for its `use`."""
        above = (section, *at)
        below = {full[len(above) :]: one for full, one in self._settings.items() if full[: len(above)] == above}
        return {key: one for key, one in below.items() if key not in ((), ("use",))}

    def _resolved(self, section: str, at: At, value: object) -> object:
        if not isinstance(value, FromEnv):
            return value
        if value.name not in self._environment:
            raise ConfigError(f"{self._place(section, at)}: the variable ${value.name} is not set")
        return Secret(self._environment[value.name])

    def _misfit(self, section: str, why: Misfit) -> ConfigError:
        if not why.at or why.why.startswith(" "):
            return ConfigError(f"{'.'.join((section, *why.at))}{why.why}")
        if why.why.startswith(": no such setting") and "did you mean" not in why.why:
            elsewhere = self._elsewhere(section, why.at[-1])
            if elsewhere:
                return ConfigError(f"{self._place(section, why.at)}: no such setting; did you mean {elsewhere}?")
        instead = f"; write {'.'.join((section, *why.at))}{why.instead}" if why.instead else ""
        return ConfigError(f"{self._place(section, why.at)}{why.why}{instead}")

    def _elsewhere(self, section: str, key: str) -> str | None:
        """The section that does have such a key."""
        known = {name: {field.name for field in dataclasses.fields(cls)} for name, cls in CORE_SECTIONS.items()}
        for name, values in self._bound.items():
            fields = [field.name for value in values for field in dataclasses.fields(value)]  # type: ignore[arg-type]
            known.setdefault(name, set()).update(fields)
        return next((f"{name}.{key}" for name, keys in known.items() if name != section and key in keys), None)

    def _place(self, section: str, at: At, value: str | None = None) -> str:
        path = (section, *at)
        origin = next((one.origin for full, one in self._settings.items() if full[: len(path)] == path), None)
        said = "" if value is None else f" = {value!r}"
        return ".".join(path) + said + (f" ({origin})" if origin else "")

    def _known_sections(self) -> list[str]:
        return [*SECTIONS, *self._bound, *(self._registry.sections if self._registry else ())]


def _rank(section: str) -> tuple[int, str]:
    return (SECTIONS.index(section) if section in SECTIONS else len(SECTIONS), section)


def _nested(flat: Mapping[At, object]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for at, value in flat.items():
        inner = table
        for part in at[:-1]:
            inner = inner.setdefault(part, {})
        inner[at[-1]] = value
    return table


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher such as torchrun says of a process; None or empty where there was none."""

    rank: int | None
    local_rank: int | None
    world: int | None
    address: str
    port: int | None


DIGITS = 12
"""Of the largest number that anybody who launches processes could mean."""


def launched(env: Mapping[str, str]) -> Launched:
    """What the launcher of this process set. ConfigError for what is no number, or none of a process or port."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    numbers: dict[str, int | None] = {}
    for name in names:
        text = env.get(name, "")
        if text and not (text.isdecimal() and len(text) <= DIGITS):
            raise ConfigError(f"${name} is {text[:DIGITS]!r}, which is no number")
        numbers[name] = int(text) if text else None
    rank, local_rank, world, port = (numbers[name] for name in names)
    return Launched(rank, local_rank, world, env.get("MASTER_ADDR", ""), port)


def environment() -> Mapping[str, str]:
    """The environment of this process."""
    return dict(os.environ)
