"""The replays that a command line asks for: one, one with each part off, or a grid that is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stepwell.abc.evict import EvictionPolicy
from stepwell.cli.options import read_config
from stepwell.cli.replay_watch import reading, watched
from stepwell.coerce import Text
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.plugins import Registry
from stepwell.replay import instant
from stepwell.replay.answers import with_answers
from stepwell.replay.arrivals import arrivals
from stepwell.replay.compare import Outcome, Policy, Sweep, grid
from stepwell.replay.parallel import Ended, Follow, each
from stepwell.replay.result import Result
from stepwell.replay.trace import MOONCAKE_BLOCK, Arrival
from stepwell.replay.variants import Variant, variants
from stepwell.replay.virtual import Parts, Shell
from stepwell.replay_build import build, eviction, policies_told
from stepwell.settings import DEFAULTS, CacheSettings
from stepwell.types import Full

AS_CONFIGURED = Variant("as configured")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of every replay; small enough to send to another process."""

    trace: Path
    block: int | None = None
    limit: int | None = None
    speed: float = 1.0
    config: str | None = None
    sets: tuple[str, ...] = ()
    price: float | None = None
    answers: bool = False
    timeless: bool = False

    @property
    def limits(self) -> dict[str, object]:
        """What it takes of the trace, where that is not all."""
        return {} if self.limit is None else {"limit": self.limit}

    def arrivals(self, *, quiet: bool = True) -> list[Arrival]:
        """The trace. Texts take a while where a tokenizer reads them, so how far it is may be seen."""
        config = read_config(self.config, self.sets)
        block = self.block or MOONCAKE_BLOCK
        with reading(quiet=quiet) as progress:
            found = arrivals(config, self.trace, block=block, limit=self.limit, speed=self.speed, progress=progress)
        return with_answers(found) if self.answers else found


@dataclass(frozen=True, slots=True)
class Task:
    """One replay of several."""

    variant: Variant
    speed: float = 1.0
    """On top of the speed that all have."""


def one(asked: Asked, trace: Sequence[Arrival], task: Task, follow: Follow | None = None) -> Result:
    """One replay; `follow` is told what says how far it is."""
    if task.speed != 1.0:
        trace = [replace(arrival, at=arrival.at / task.speed) for arrival in trace]
    if asked.timeless:
        return _without_time(asked, trace, task.variant)
    parts, setup = _prepared(asked, task.variant, trace[0].block)
    shell = Shell(parts, trace)
    if follow is not None:
        follow(lambda: shell.next_arrival / len(trace))
    result = shell.run()
    result.price_per_hour = asked.price
    result.setup = {**setup, "speed": asked.speed * task.speed, **asked.limits}
    return result


def every_variant(asked: Asked, jobs: int, *, quiet: bool) -> dict[str, Result]:
    """As configured and without each part."""
    config = read_config(asked.config, asked.sets)
    parts, setup = build(config, config.load_plugins(), AS_CONFIGURED, 1)
    wanted = variants(
        host=bool(setup["host_pages"]),
        storage=bool(setup["storage_gib"]),
        write=config.use("write", DEFAULTS["write"]),
        schedule=config.use("schedule", DEFAULTS["schedule"]),
        windows=any(not isinstance(group.need, Full) for group in parts.groups),
    )
    results = _all(asked, asked.arrivals(quiet=quiet), [Task(variant) for variant in wanted], jobs, quiet=quiet)
    return {variant.name: result for variant, result in zip(wanted, results, strict=True)}


def compared(
    asked: Asked, compare: Sequence[Policy], swept: Sequence[Sweep], jobs: int, *, quiet: bool
) -> list[Outcome]:
    """Every combination. All are made once before any is run, so that a mistake in the last costs no time."""
    trace = asked.arrivals(quiet=quiet)
    config = read_config(asked.config, asked.sets)
    registry = config.load_plugins()
    _strangers(config, registry, compare)
    combinations = grid(compare, swept, lambda policy, key: key.split(".")[1] in _fields(registry, policy.name))
    tasks = [Task(Variant(one.name, one.sets), one.speed) for one in combinations]
    for task in tasks:
        try:
            if asked.timeless:
                _sized(asked, task.variant, registry)
            else:
                _prepared(asked, task.variant, trace[0].block, registry)
        except ConfigError as error:
            raise ConfigError(f"{task.variant.name}: {error}") from error
    return list(zip(combinations, _all(asked, trace, tasks, jobs, quiet=quiet), strict=True))


def _all(asked: Asked, trace: Sequence[Arrival], tasks: Sequence[Task], jobs: int, *, quiet: bool) -> list[Result]:
    """The results of several replays, each in a process of its own."""
    pieces = [(task.variant.name, task) for task in tasks]
    found: dict[int, Result] = {}
    with closing(each(partial(one, asked, trace), pieces, jobs)) as events:
        for event in watched(events, [name for name, _ in pieces], quiet=quiet):
            if isinstance(event, Ended):
                found[event.number] = event.result
    return [found[number] for number in range(len(tasks))]


def _prepared(
    asked: Asked, variant: Variant, block: int, registry: Registry | None = None
) -> tuple[Parts, dict[str, object]]:
    """What a timed replay runs on."""
    config = _configured(asked, variant)
    registry = registry or config.load_plugins()
    _own(config, registry, variant)
    found = build(config, registry, variant, block)
    config.finish(registry)
    return found


def _configured(asked: Asked, variant: Variant) -> Config:
    """The config with what a variant changes."""
    changed = dict(text.split("=", 1) for text in variant.sets)
    return read_config(asked.config, asked.sets, {key: Text(value) for key, value in changed.items()})


def _own(config: Config, registry: Registry, variant: Variant) -> None:
    """Where a variant chooses another offer than the config does, drop those of its settings that this one has not."""
    keys = [text.partition("=")[0].split(".") for text in variant.sets]
    for section in [at[0] for at in keys if at[1:] == ["use"]]:
        name = config.use(section, "")
        if registry.why_not(section, name) is None:
            config.narrow(section, [*_fields(registry, name, section), *(at[1] for at in keys if at[0] == section)])


def _fields(registry: Registry, name: str, kind: str = "schedule") -> list[str]:
    """The settings of an offer; of one that cannot be had none."""
    if registry.why_not(kind, name) is not None:
        return []
    return [field.name for field in dataclasses.fields(registry.offer(kind, name).config)]


def _strangers(config: Config, registry: Registry, compare: Sequence[Policy]) -> None:
    """ConfigError for a setting in `[schedule]` that no policy has: each alone would leave it to the others."""
    if not compare or any(registry.why_not("schedule", policy.name) for policy in compare):
        return
    for line in config.shown():
        key = line.key.split(".")[0]
        known = key == "use" or any(key in _fields(registry, policy.name) for policy in compare)
        if line.section == "schedule" and not known:
            raise config.error("schedule", key, "no policy that is compared has such a setting")


def _without_time(asked: Asked, arrivals: Sequence[Arrival], variant: Variant) -> Result:
    """The index alone."""
    pages, policy, setup = _sized(asked, variant)
    result = instant.run(arrivals, pages, policy)
    result.setup = {"device_pages": pages, "block_tokens": arrivals[0].block, **setup, **asked.limits}
    return result


def _sized(
    asked: Asked, variant: Variant, registry: Registry | None = None
) -> tuple[int, EvictionPolicy | None, dict[str, object]]:
    """What a replay without time runs on: pages, a policy where the config names one, and what is told of it."""
    config = _configured(asked, variant)
    registry = registry or config.load_plugins()
    _own(config, registry, variant)
    cache = config.bind("cache", CacheSettings)
    if cache.device_pages is None:
        raise ConfigError("--instant needs the size of the cache in blocks: --set cache.device_pages=N")
    policy = eviction(config, registry) if config.has("evict") else None
    config.finish(registry)
    return cache.device_pages, policy, policies_told(config, ["evict"])
