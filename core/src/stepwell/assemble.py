"""From a config and the plugins' offers to an engine: the last place where a name is looked up."""

# mypy: disable-error-code="type-abstract"
# Contracts are asked for by their abstract class and only ever compared with it.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepwell.abc.codec import Codec
from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.runner import Runner
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.sink import Sink
from stepwell.abc.storage import Storage
from stepwell.abc.write import WritePolicy
from stepwell.cache.arena import Arena
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.elsewhere import Elsewhere
from stepwell.cache.host import demand
from stepwell.cache.shards import sharded
from stepwell.coerce import guess
from stepwell.config import Chosen, Config
from stepwell.engine.brain import Brain, BrainSettings
from stepwell.engine.contain import Faults, SafeEviction, SafeRetention, SafeWrite
from stepwell.engine.guard import IoLimits
from stepwell.engine.making import Place, make, make_storage
from stepwell.engine.messages import Hello, groups_told
from stepwell.engine.parts import Parts, StorageInfo, sentence
from stepwell.engine.ranks.runner import RanksRunner
from stepwell.engine.ranks.start import device_of, judge, own_arenas, spread, storage_of
from stepwell.errors import ConfigError
from stepwell.offers import Capability, provided
from stepwell.plugins import Plan, Registry
from stepwell.register import hook_of
from stepwell.resolve import resolve
from stepwell.shown import UNSET
from stepwell.sizing import Load, Pools, describe, size
from stepwell.types import GroupSpec, Tier

__all__ = ["Assembly", "Place", "make", "make_storage"]

T = TypeVar("T")


class Assembly:
    """A config that has been judged, and what is made of it. Making loads models and takes memory; judging does not."""

    def __init__(self, config: Config, registry: Registry) -> None:
        """Bind every section and choose every offer. Raises ConfigError for the first mistake."""
        self.config, self.registry = config, registry
        self.resolved = resolve(config, registry)
        config.finish(registry)
        self._log = logging.getLogger("stepwell.assemble")
        self._faults = Faults()

    def codec(self) -> Codec:
        """The tokenizer of the runner that was chosen: all that a front end needs of a model."""
        runner = self.resolved.chosen["runner"]
        name = runner.offer.name
        if why := self.registry.why_not("codec", name):
            raise ConfigError(f"runner.use = {name!r} ({runner.origin}) has no tokenizer: {why}")
        offer = self.registry.offer("codec", name)
        return self._made(Chosen("runner", offer, runner.settings, runner.origin), Codec)

    def parts(self, *, again: bool = False) -> Parts:
        """Everything that an engine runs on. On the thread that will run it, since a runner belongs to one.

        `again`: the engine has run before, so a storage that cannot be made is left out instead of raising.
        """
        with ExitStack() as undo:
            parts = self._parts(undo, again)
            offers = {section: choice.offer for section, choice in self.resolved.chosen.items()}
            self.registry.assembled(Plan(self.registry, self.config, offers))
            undo.pop_all()
        return parts

    def _parts(self, undo: ExitStack, again: bool) -> Parts:
        """The parts; `undo` closes those that are there if a later one fails."""
        settings, chosen = self.resolved, self.resolved.chosen
        own = own_arenas(settings.ranks)
        here = settings.ranks.launcher == "own"
        if settings.cache.host_gib and here:
            demand(int(settings.cache.host_gib * 2**30), "cache.host_gib")  # before a model is loaded
        runner = self._runner()
        undo.callback(runner.close)
        groups = sharded(runner.groups, settings.cache.head_shards)
        copies = settings.ranks.tp if own else 1
        pools = size(self.config, settings.cache, groups, runner.budget(), load=self._load(runner), copies=copies)
        arena: Arena | Elsewhere | None = None
        if any(pools.host):
            setting = "cache.host_gib" if settings.cache.host_gib else "cache.host_pages"
            kind = Elsewhere if own else Arena.create
            if own and here:
                needed = sum(count * nbytes for count, nbytes in zip(pools.host, pools.slots, strict=True))
                demand(needed, setting, f" for {sum(pools.host)} pages of {settings.ranks.tp} ranks")
            arena = kind(groups, settings.cache.page_size, pools.host, setting=setting, named=self._by_name())
            undo.callback(arena.close)
        sinks = [self._make("sink", Sink)] if "sink" in chosen else []
        for sink in sinks:
            undo.callback(sink.close)
        hooked = self._hooked("stepwell_events")
        cache = self._cache(pools, groups, events=bool(sinks) or hooked)
        self._enough(cache, groups)
        storage, info, lacking = None, None, ""
        make_one = partial(self._storage, runner, shared=own or arena is None or arena.fd >= 0)
        if "storage" in chosen:
            info = _told(chosen["storage"], self.config)
            try:
                storage = make_one(chosen["storage"])
                undo.callback(storage.close)
            except BaseException as error:  # a native client that panics, too
                if not again:
                    raise
                lacking = sentence(error)
        return Parts(
            hello=self._hello(runner, cache, storage),
            brain=self._brain(runner, cache),
            cache=cache,
            runner=runner,
            page_size=settings.cache.page_size,
            pages={group.name: pages for group, pages in zip(groups, pools.device, strict=True)},
            slots=settings.engine.max_running,
            arena=arena,
            groups=groups,
            storage=storage,
            limits=self._limits(),
            drain_s=settings.engine.drain_s,
            sinks=sinks,
            on_events=self.registry.events if hooked else None,
            on_stop=self.registry.stopping,
            info=info,
            lacking=lacking,
            renew=(lambda: make_one(chosen["storage"])) if again and info else None,
            new_storage=partial(self._new_storage, make_one),
            summary=self._summary(runner, groups, pools),
        )

    def _new_storage(
        self, make_one: Callable[[Chosen], Storage], table: Mapping[str, object]
    ) -> tuple[StorageInfo, Storage]:
        """A storage that nothing was said of at the start. Raises ConfigError or PluginError."""
        if self.resolved.ranks.tp > 1 and self.resolved.ranks.launcher == "external":
            raise ConfigError(
                "no storage can be attached where somebody else started the ranks, since each makes that of its own "
                "config: start the engine and its ranks anew with another [storage]"
            )
        config = self.config.beside("storage", table)
        choice = config.choose("storage", "storage", self.registry)
        if choice is None:
            names = ", ".join(self.registry.offers("storage"))
            raise ConfigError(f"storage.use is required and not set; have {names}")
        return _told(choice, config), make_one(choice)

    def _storage(self, runner: Runner, choice: Chosen, *, shared: bool) -> Storage:
        ranks = self.resolved.ranks
        if own_arenas(ranks) and isinstance(runner, RanksRunner):
            return storage_of(runner, choice, self._place(choice.offer.name), self.resolved.tiers, ranks.start_s)
        return make_storage(choice, self._place(choice.offer.name), self.resolved.tiers, shared=shared)

    def _by_name(self) -> bool:
        """Whether storage reaches the host tier's memory only by its name."""
        choice = self.resolved.chosen.get("storage")
        return choice is not None and Capability.NAMED_MEMORY in provided(choice.offer, choice.settings)

    def _runner(self) -> Runner:
        """The runner in this process, or one that stands for several ranks, each in a process of its own."""
        ranks, choice = self.resolved.ranks, self.resolved.chosen["runner"]
        if ranks.tp == 1:
            return self._make("runner", Runner)
        judge(choice, ranks)
        return spread(choice, self._place(choice.offer.name), ranks)

    # --- pieces ------------------------------------------------------------------------------------------------

    def _cache(self, pools: Pools, groups: tuple[GroupSpec, ...], *, events: bool) -> Cache:
        def evict(tier: Tier, group: GroupSpec) -> EvictionPolicy:
            return SafeEviction(self._make("evict", EvictionPolicy), self._faults)

        shape = CacheShape(groups, self.resolved.cache.page_size, pools.device, pools.host)
        write = SafeWrite(self._make("write", WritePolicy), self._faults)
        retain = SafeRetention(self._make("retain", RetentionPolicy), self._faults)
        storage = "storage" in self.resolved.chosen
        try:
            return Cache(shape, evict=evict, write=write, retain=retain, storage=storage, events=events)
        except (MemoryError, OverflowError):
            pages = sum(pools.device) + sum(pools.host)
            raise ConfigError(
                f"memory does not suffice to keep track of {pages} pages: lower cache.device_pages and cache.host_pages"
            ) from None

    def _brain(self, runner: Runner, cache: Cache) -> Brain:
        engine = self.resolved.engine
        prefetch = None
        if "prefetch" in self.resolved.chosen:
            prefetch = self._make("prefetch", PrefetchPolicy)
            prefetch.max_pages = min(prefetch.max_pages, self.resolved.tiers.fetch_pages)
        settings = BrainSettings(
            max_prefill_tokens=engine.max_prefill_tokens,
            chunk=max(1, engine.chunk or runner.preferred_chunk),
            max_running=engine.max_running,
            max_waiting=engine.max_waiting,
            look_at=engine.look_at,
            prefill_every=engine.prefill_every,
            decode_every=engine.decode_every,
            max_retractions=engine.max_retractions,
            count_by=engine.count_by,
            depth=max(1, runner.depth),
            max_steps=max(1, runner.max_steps),
            save_pages_per_step=self.resolved.cache.save_pages_per_step,
            late_saves=runner.late_saves,
        )
        policy = self._make("schedule", SchedulePolicy)
        brain = Brain(model=runner.model, cache=cache, policy=policy, prefetch=prefetch, settings=settings)
        self._faults.also = brain.counters.fault
        return brain

    def _load(self, runner: Runner) -> Load:
        engine = self.resolved.engine
        chunk = min(engine.max_prefill_tokens, engine.chunk or runner.preferred_chunk)
        return Load(engine.max_running, max(1, chunk), max(1, runner.depth))

    def _limits(self) -> IoLimits:
        tiers = self.resolved.tiers
        return IoLimits(
            threads=tiers.io_threads,
            timeout_s=tiers.timeout_s,
            stuck=tiers.stuck_calls,
            retries=tiers.retries,
            failures=tiers.breaker_failures,
            pause_s=tiers.breaker_s,
        )

    def _hello(self, runner: Runner, cache: Cache, storage: Storage | None) -> Hello:
        model, page_size = runner.model, self.resolved.cache.page_size
        return Hello(
            model=model.name,
            context=model.context,
            vocab=model.vocab,
            eos=model.eos,
            page_size=page_size,
            namespace={
                "model": model.fingerprint,
                "dtype": model.kv_dtype,
                "layout": model.layout,
                "page_size": str(page_size),
            },
            storage=storage is not None,
            plugins=self.registry.digest(),
            largest=min(cache.largest(), model.context),
            groups=groups_told(runner.groups),
        )

    def _enough(self, cache: Cache, groups: tuple[GroupSpec, ...]) -> None:
        """The smallest request that makes sense has to fit: a page of prompt and a token more."""
        least = self.resolved.cache.page_size + 1
        if not cache.fits(least):
            needs = ", ".join(group.name for group in groups)
            raise self.config.error(
                "cache",
                "device_gib" if self.resolved.cache.device_gib else "device_pages",
                f"the device holds {cache.largest()} tokens of a request, and {least} are the least (groups: {needs})",
            )

    def _summary(self, runner: Runner, groups: tuple[GroupSpec, ...], pools: Pools) -> list[str]:
        lines = [f"model {runner.model.name}: {runner.model.kv_dtype} KV, context {runner.model.context}"]
        lines += describe(pools, groups, self.resolved.cache, self.resolved.ranks.tp)
        lines += [
            f"{section} {choice.offer.name} ({choice.origin})"
            for section, choice in self.resolved.chosen.items()
            if section != "prefetch" or "storage" in self.resolved.chosen
        ]
        return lines + list(self.config.notes)

    # --- offers ------------------------------------------------------------------------------------------------

    def _make(self, section: str, kind: type[T]) -> T:
        return self._made(self.resolved.chosen[section], kind)

    def _made(self, choice: Chosen, kind: type[T]) -> T:
        return make(choice, kind, self._place(choice.offer.name))

    def _place(self, name: str) -> Place:
        ranks = self.resolved.ranks
        device = getattr(self.resolved.chosen["runner"].settings, "device", None)
        device = device if isinstance(device, str) else "cpu"
        device = device_of(device, ranks, 0) if ranks.tp == 1 else device
        return Place(name, device, self._folder, group=ranks.group, groups=ranks.dp, commons=ranks.commons)

    def _folder(self) -> Path:
        return self.resolved.engine.state_dir or self.config.cache_dir

    def _hooked(self, hook: str) -> bool:
        manager = self.registry.manager
        return any(hook_of(manager, plugin, hook) is not None for plugin in manager.get_plugins())


def _told(choice: Chosen, config: Config) -> StorageInfo:
    """What may be told of a storage: every setting, secrets and passwords in addresses hidden."""
    shown = [line for line in config.shown() if line.section == choice.section and line.key != "use"]
    settings = {line.key: None if line.value == UNSET else guess(line.value) for line in shown}
    provides = tuple(sorted(capability.value for capability in choice.provides))
    return StorageInfo(choice.offer.name, provides, settings)
