"""Core's sections together: bound, rounded to whole pages, and no option without effect."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.settings import CacheSettings, EngineSettings, TierSettings


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What core itself is told."""

    cache: CacheSettings
    engine: EngineSettings
    tiers: TierSettings


def core_settings(config: Config) -> CoreSettings:
    """Bind `[cache]`, `[engine]` and `[tiers]`; ConfigError for a section whose prerequisite is missing."""
    cache = config.bind("cache", CacheSettings)
    engine, notes = config.bind("engine", EngineSettings).in_pages(cache.page_size)
    config.adjust("engine", engine, notes)
    tiers = config.bind("tiers", TierSettings)
    for section in ("storage", "write"):
        _needs(config, section, cache.host, "a host tier", "cache.host_gib or cache.host_pages")
    for section in ("prefetch", "tiers"):
        _needs(config, section, config.has("storage"), "storage", "storage.use")
    return CoreSettings(cache, engine, tiers)


def _needs(config: Config, section: str, met: bool, what: str, option: str) -> None:
    if config.has(section) and not met:
        origin = config.origin(section)
        raise ConfigError(
            f"[{section}] ({origin}) has no effect without {what}; set {option}, or leave [{section}] out"
        )
