"""Core's own parts, registered through the same hooks as anybody's.

Each hook imports what it offers: whoever wants one part, such as the replay, does not pay for all.
"""

from collections.abc import Iterable

from stepwell.abc.codec import Codec
from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.route import RoutePolicy
from stepwell.abc.runner import Runner
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.sink import Sink
from stepwell.abc.storage import Storage
from stepwell.abc.write import WritePolicy
from stepwell.markers import hookimpl
from stepwell.offers import Capability, Offer


@hookimpl
def stepwell_prefetchers() -> Iterable[Offer[PrefetchPolicy]]:
    """How long a request waits for storage."""
    from stepwell.builtin.prefetch import (
        BestEffort,
        PrefetchConfig,
        Timeout,
        TimeoutConfig,
        WaitComplete,
        WaitConfig,
    )

    return [
        Offer("best_effort", BestEffort, PrefetchConfig),
        Offer("wait_complete", WaitComplete, WaitConfig),
        Offer("timeout", Timeout, TimeoutConfig),
    ]


@hookimpl
def stepwell_storages() -> Iterable[Offer[Storage]]:
    """Storage for tests and for sharing within one process, and two storages as one."""
    from stepwell.builtin.compose import MirrorConfig, TieredConfig, mirror, tiered
    from stepwell.builtin.memory import MemoryConfig, MemoryStorage

    return [
        Offer("memory", MemoryStorage, MemoryConfig, provides=frozenset({Capability.DELETES, Capability.LISTS})),
        Offer("mirror", mirror, MirrorConfig),
        Offer("tiered", tiered, TieredConfig),
    ]


@hookimpl
def stepwell_sinks() -> Iterable[Offer[Sink]]:
    """Events to a file or to subscribers."""
    from stepwell.builtin.sinks import JsonlConfig, JsonlSink, ZmqConfig, ZmqSink

    return [Offer("jsonl", JsonlSink, JsonlConfig), Offer("zmq", ZmqSink, ZmqConfig)]


@hookimpl
def stepwell_schedulers() -> Iterable[Offer[SchedulePolicy]]:
    """First come, first served, and several policies as one."""
    from stepwell.builtin.choices import ChoicesConfig, choices
    from stepwell.builtin.fcfs import Fcfs

    return [Offer("fcfs", Fcfs), Offer("choices", choices, ChoicesConfig)]


@hookimpl
def stepwell_routers() -> Iterable[Offer[RoutePolicy]]:
    """Which of several groups serves a request."""
    from stepwell.builtin.routers import CacheAware, CacheAwareConfig, LeastLoaded, RoundRobin, Sticky

    return [
        Offer("cache-aware", CacheAware, CacheAwareConfig),
        Offer("least-loaded", LeastLoaded),
        Offer("round-robin", RoundRobin),
        Offer("sticky", Sticky),
    ]


@hookimpl
def stepwell_runners() -> Iterable[Offer[Runner]]:
    """A runner without a device."""
    from stepwell.builtin.sim import SimConfig, SimRunner

    return [Offer("sim", SimRunner, SimConfig, provides=frozenset({Capability.RANKS}))]


@hookimpl
def stepwell_codecs() -> Iterable[Offer[Codec]]:
    """The sim runner's tokenizer."""
    from stepwell.builtin.sim import SimConfig
    from stepwell.builtin.sim_codec import SimCodec

    return [Offer("sim", SimCodec, SimConfig)]


@hookimpl
def stepwell_evictors() -> Iterable[Offer[EvictionPolicy]]:
    """Least recently used."""
    from stepwell.builtin.lru import Lru

    return [Offer("lru", Lru)]


@hookimpl
def stepwell_writers() -> Iterable[Offer[WritePolicy]]:
    """What is copied down a tier."""
    from stepwell.builtin.writers import (
        SelectiveConfig,
        WriteBack,
        WriteBackConfig,
        WriteThrough,
        WriteThroughSelective,
    )

    return [
        Offer("write_through", WriteThrough),
        Offer("write_through_selective", WriteThroughSelective, SelectiveConfig),
        Offer("write_back", WriteBack, WriteBackConfig),
    ]


@hookimpl
def stepwell_retainers() -> Iterable[Offer[RetentionPolicy]]:
    """Which lengths stay restorable."""
    from stepwell.builtin.retain import Tail

    return [Offer("tail", Tail)]
