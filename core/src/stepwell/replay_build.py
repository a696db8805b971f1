"""From a config and the plugins' offers to what a replay runs on: policies as in production, the rest simulated."""

# mypy: disable-error-code="type-abstract"

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import TypeVar

from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.runner import ModelInfo
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.write import WritePolicy
from stepwell.assemble import Place, make
from stepwell.cache.cache import Cache, CacheShape
from stepwell.coerce import guess
from stepwell.config import DEFAULT, Config
from stepwell.engine.brain import Brain, BrainSettings
from stepwell.engine.contain import Faults, SafeEviction, SafeRetention, SafeWrite
from stepwell.plugins import Registry
from stepwell.replay.affinity import Experts
from stepwell.replay.links import Link, SimStore
from stepwell.replay.model import pretend
from stepwell.replay.settings import ReplaySettings
from stepwell.replay.transfers import SimStorage
from stepwell.replay.variants import Variant
from stepwell.replay.virtual import Parts
from stepwell.schedule.timing import Machine
from stepwell.settings import DEFAULTS, CacheSettings, EngineSettings
from stepwell.sizing import Load, size

MAX_RUNNING = 256
"""Where the config does not say; the default of `engine.max_running` is one for small machines."""
MAX_STEPS = 4096
LONGEST = 1 << 30
GIB = 2**30

T = TypeVar("T")


def build(config: Config, registry: Registry, variant: Variant, block: int) -> tuple[Parts, dict[str, object]]:
    """Everything that one replay runs on, and a description of it. `block`: tokens that a trace has an id for."""
    settings = config.bind("replay", ReplaySettings)
    cache_settings = config.bind("cache", CacheSettings)
    model = pretend(config, settings)
    if config.origin("cache", "page_size") is DEFAULT and block > 1:
        cache_settings = replace(cache_settings, page_size=model.page(block))
    limits = _limits(config)
    load = Load(limits.max_running, limits.chunk, limits.depth)
    pools = size(config, cache_settings, model.groups, model.device_bytes, load=load)
    host = pools.host if variant.host else (0,) * len(model.groups)
    storage_gib = settings.storage_gib if variant.storage else 0.0
    if storage_gib and not any(host):
        raise config.error("replay", "storage_gib", "storage needs a host tier; set cache.host_gib or cache.host_pages")

    faults = Faults()
    cache = Cache(
        CacheShape(model.groups, cache_settings.page_size, pools.device, host),
        evict=lambda tier, spec: SafeEviction(eviction(config, registry), faults),
        write=SafeWrite(_made(config, registry, "write", WritePolicy), faults),
        retain=SafeRetention(_made(config, registry, "retain", RetentionPolicy), faults),
        storage=storage_gib > 0,
    )
    info = ModelInfo(model.name, model.name, "bfloat16", "replay", LONGEST, LONGEST, ())
    brain = Brain(
        model=info,
        cache=cache,
        policy=_made(config, registry, "schedule", SchedulePolicy),
        prefetch=_made(config, registry, "prefetch", PrefetchPolicy) if storage_gib else None,
        settings=limits,
    )
    faults.also = brain.counters.fault
    machine = Machine(model.clock(pools.device[0] * cache_settings.page_size), pools.page_bytes)
    parts = Parts(brain, cache, info, model.groups, pools.page_bytes, machine)
    parts.keep, parts.devices, parts.sample_every = variant.cache, model.devices, settings.sample_every
    parts.experts = Experts(model.affinity) if model.affinity else None
    parts.storage = _storage(settings, storage_gib)
    setup: dict[str, object] = {
        "preset": settings.preset,
        "devices": model.devices,
        "page_size": cache_settings.page_size,
        "device_pages": pools.device[0],
        "host_pages": host[0],
        "storage_gib": storage_gib,
        "max_prefill_tokens": limits.max_prefill_tokens,
        "max_running": limits.max_running,
        **policies_told(config, DEFAULTS),
    }
    if settings.model:
        setup |= {"model": settings.model, "windows": settings.windows}
    if model.affinity:
        setup["experts"] = asdict(model.affinity)
    if block == 1:
        setup["tokenizer"] = settings.tokenizer or "four bytes a token"
    return parts, setup


def _storage(settings: ReplaySettings, gib: float) -> SimStorage | None:
    if not gib:
        return None
    latency = settings.storage_latency_ms / 1e3
    read = Link(settings.storage_read_gb_s * 1e9, latency)
    return SimStorage(SimStore(int(gib * GIB)), read, Link(settings.storage_write_gb_s * 1e9, latency))


def _limits(config: Config) -> BrainSettings:
    engine = config.bind("engine", EngineSettings)
    unset = config.origin("engine", "max_running") is DEFAULT
    return BrainSettings(
        max_prefill_tokens=engine.max_prefill_tokens,
        chunk=engine.chunk or engine.max_prefill_tokens,
        max_running=MAX_RUNNING if unset else engine.max_running,
        max_waiting=LONGEST,
        look_at=engine.look_at,
        prefill_every=engine.prefill_every,
        decode_every=engine.decode_every,
        max_retractions=engine.max_retractions,
        count_by=engine.count_by,
        depth=1,
        max_steps=MAX_STEPS,
    )


def _made(config: Config, registry: Registry, role: str, kind: type[T]) -> T:
    choice = config.choose(role, role, registry, DEFAULTS[role])
    return make(choice, kind, Place(choice.offer.name, "cpu", lambda: config.cache_dir))


def policies_told(config: Config, roles: Collection[str]) -> dict[str, object]:
    """The policy of each role by name, and what was set of them, each as `role.key`."""
    return {role: config.use(role, DEFAULTS[role]) for role in roles} | {
        f"{line.section}.{line.key}": guess(line.value)
        for line in config.shown()
        if line.section in roles and line.key != "use" and line.origin != str(DEFAULT)
    }


def eviction(config: Config, registry: Registry) -> EvictionPolicy:
    """The eviction policy that the config names."""
    return _made(config, registry, "evict", EvictionPolicy)
