"""Every section of a config bound and every offer chosen: what can be said of a start before anything is built.

`doctor`, `config show` and the assembly all ask here, so that they never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from stepwell.config import Chosen, Config
from stepwell.errors import ConfigError
from stepwell.plugins import Registry
from stepwell.settings import DEFAULTS, ROUTE, CacheSettings, EngineSettings, RankSettings, TierSettings


@dataclass(frozen=True, slots=True)
class Resolved:
    """What core itself is told, and the offer of each role that this start has."""

    cache: CacheSettings
    engine: EngineSettings
    tiers: TierSettings
    ranks: RankSettings
    chosen: dict[str, Chosen]
    """By section. Always: runner, evict, write, retain, schedule. Where there is a host tier, so that storage can be
    attached: prefetch. Where there are several groups: route. Where the config says so: storage, sink."""


def resolve(config: Config, registry: Registry) -> Resolved:
    """Bind all that core binds; ConfigError for the first mistake, also for a section without its prerequisite."""
    cache = config.bind("cache", CacheSettings)
    engine, notes = config.bind("engine", EngineSettings).in_pages(cache.page_size)
    config.adjust("engine", engine, notes)
    tiers = config.bind("tiers", TierSettings)
    ranks = config.bind("ranks", RankSettings)
    for section in ("storage", "write"):
        _needs(config, section, cache.host, "a host tier", "cache.host_gib or cache.host_pages")
    for section in ("prefetch", "tiers"):
        _needs(config, section, cache.host, "storage", "storage.use")
        if config.has(section) and not config.has("storage"):
            config.notes.append(f"[{section}] ({config.origin(section)}) has no effect until a storage is attached")
    chosen: dict[str, Chosen] = {}
    for role, default in DEFAULTS.items():
        if role != "prefetch" or cache.host:
            chosen[role] = config.choose(role, role, registry, default)
    for role in ("storage", "sink"):
        optional = config.choose(role, role, registry)
        if optional:
            chosen[role] = optional
    if ranks.dp > 1:
        chosen["route"] = config.choose("route", "route", registry, ROUTE)
    chosen = {role: _in_pages(config, choice, cache.page_size) for role, choice in chosen.items()}
    chosen["runner"] = config.choose_runner(registry)
    return Resolved(cache, engine, tiers, ranks, chosen)


@runtime_checkable
class InPages(Protocol):
    """Settings that count tokens and mean whole pages."""

    def in_pages(self, page_size: int) -> tuple[InPages, list[str]]:
        """These settings in whole pages, and a note for each value that was not."""


def _in_pages(config: Config, choice: Chosen, page_size: int) -> Chosen:
    if not isinstance(choice.settings, InPages):
        return choice
    settings, notes = choice.settings.in_pages(page_size)
    config.adjust(choice.section, settings, notes)
    return replace(choice, settings=settings)


def _needs(config: Config, section: str, met: bool, what: str, option: str) -> None:
    if config.has(section) and not met:
        origin = config.origin(section)
        raise ConfigError(
            f"[{section}] ({origin}) has no effect without {what}; set {option}, or leave [{section}] out"
        )
