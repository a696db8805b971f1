"""The extra config of SGLang's backend: what it says of the storage, and everything that is wrong with it at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepwell import ConfigError, Storage
from stepwell.assemble import Place, make
from stepwell.config import Chosen, Config, environment
from stepwell.engine.guard import IoLimits
from stepwell.plugins import Registry
from stepwell.settings import TierSettings
from stepwell.suggest import meant

SECTION = "storage"
OWN = ("storage", "config", "tiers", "also", "revision", "verify", "bounce_mib", "calls")
SGLANG = ("backend_name", "module_path", "class_name", "interface_v1", "allocator", "file_storage_path")
LIMITS = IoLimits(threads=4, timeout_s=5.0, stuck=2, retries=1, failures=3, pause_s=5.0)
"""Where `tiers` says nothing. Tighter than in Stepwell, since a thread of SGLang's waits for every call."""
BOUNCE_MIB = 64

log = logging.getLogger("stepwell.sglang")


@dataclass(frozen=True)
class Settings:
    """What the extra config comes to."""

    config: Config
    registry: Registry
    choice: Chosen
    limits: IoLimits
    also: Mapping[str, object]
    revision: str | None
    verify: bool | Literal["auto"]
    bounce_bytes: int
    calls: int | Literal["auto"]
    """Calls to the storage that a batch of SGLang's is made of."""
    zero_copy: bool
    """Whether SGLang calls the interface that names host slots, rather than the one that passes tensors."""

    def storage(self, nth: int, rank: int, world: int) -> Storage:
        """The storage, made anew; all but the first with the settings of `also` besides."""
        choice = self.choice
        if nth and self.also:
            choice = _choose(_load(self.config_path, {**self.table, **self.also}), self.registry)
        place = Place(choice.offer.name, "cpu", lambda: self.config.cache_dir, rank=rank, world=world)
        return make(choice, Storage, place)  # type: ignore[type-abstract]

    config_path: Path | None
    table: Mapping[str, object]


def read(extra: Mapping[str, object]) -> Settings:
    """Judge the extra config. Raises ConfigError, one sentence."""
    for name in extra.keys() - {*OWN, *SGLANG}:
        hint = meant(name, OWN)
        if hint.startswith("; did you mean"):
            raise ConfigError(f"{name} (extra config): no such setting{hint}")
        log.warning("%s (extra config) is not a setting of Stepwell and is ignored", name)
    table, also, tiers = (_table(extra, name) for name in ("storage", "also", "tiers"))
    path = extra.get("config")
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"config (extra config): {path!r} is not the path of a TOML file")
    if not table and not path:
        raise ConfigError(
            'the extra config names no storage: add "storage": {"use": "file", "path": "/pages"}, or "config": '
            '"stepwell.toml" for a file with a [storage] section'
        )
    config_path = Path(path) if path else None
    config = _load(config_path, table, tiers)
    registry = config.load_plugins()
    revision = extra.get("revision")
    verify = extra.get("verify", "auto")
    bounce = extra.get("bounce_mib", BOUNCE_MIB)
    if revision is not None and not isinstance(revision, str | int):
        raise ConfigError(f"revision (extra config): {revision!r} is neither text nor a number")
    if verify not in (True, False, "auto"):
        raise ConfigError(f'verify (extra config): {verify!r} is none of true, false and "auto"')
    if not isinstance(bounce, int | float) or bounce <= 0:
        raise ConfigError(f"bounce_mib (extra config): {bounce!r} is not a size above 0")
    calls = extra.get("calls", "auto")
    if calls != "auto" and (not isinstance(calls, int) or isinstance(calls, bool) or calls < 1):
        raise ConfigError(f'calls (extra config): {calls!r} is neither "auto" nor a number above 0')
    return Settings(
        config=config,
        registry=registry,
        choice=_choose(config, registry),
        limits=_limits(config),
        also=also,
        revision=None if revision is None else str(revision),
        verify=verify,
        bounce_bytes=int(bounce * 2**20),
        calls=calls,
        zero_copy=bool(extra.get("interface_v1", 0)),
        config_path=config_path,
        table=table,
    )


def _table(extra: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = extra.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name} (extra config): {value!r} is not a table such as {{"use": "file"}}')
    return value


def _load(path: Path | None, table: Mapping[str, object], tiers: Mapping[str, object] | None = None) -> Config:
    extra = {name: values for name, values in (("storage", table), ("tiers", tiers or {})) if values}
    return Config.load(path, environment(), extra=extra)


def _choose(config: Config, registry: Registry) -> Chosen:
    choice = config.choose(SECTION, SECTION, registry)
    if choice is None:
        raise ConfigError('the config has no [storage] section: add one, such as use = "file"')
    return choice


def _limits(config: Config) -> IoLimits:
    if not config.has("tiers"):
        return LIMITS
    tiers = config.bind("tiers", TierSettings)
    return IoLimits(
        threads=tiers.io_threads,
        timeout_s=tiers.timeout_s,
        stuck=tiers.stuck_calls,
        retries=tiers.retries,
        failures=tiers.breaker_failures,
        pause_s=tiers.breaker_s,
    )
