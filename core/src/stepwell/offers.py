"""What a plugin registers: a named factory, the settings it takes, and what it can do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

from stepwell.types import PageKey, PageViews

T = TypeVar("T", covariant=True)


class Capability(Enum):
    """What an offer declares it can do; core and the kits read it, nothing is inferred from a name."""

    ZERO_COPY = "zero-copy"
    """Storage: reads and writes the arena's memory itself."""
    PERSISTENT = "persistent"
    """Storage: pages outlive the process."""
    SHARED = "shared"
    """Storage: several processes may use it at once and see each other's pages."""
    EVICTS = "evicts"
    """Storage: drops pages by itself when it is full."""
    DELETES = "deletes"
    """Storage: a page that was deleted is gone at once."""
    LISTS = "lists"
    """Storage: can say which pages it holds (`Storage.scan`)."""
    CHECKS = "checks"
    """Storage: never hands out bytes other than those that were written; it sums them up itself."""
    APART = "apart"
    """Storage: its client may hold up or end the process it lives in, so core gives it a process of its own."""
    NAMED_MEMORY = "named-memory"
    """Storage: reaches the arena only as a named file in /dev/shm, which `ArenaView.name` names during `attach`."""
    TOGETHER = "together"
    """Runner: with `ranks.dp` above 1 its groups compute each step together (`Context.commons`), so that one that is
    lost takes the others with it."""
    RANKS = "ranks"
    """Runner: can be one of several ranks (`Context.world`); each plan then comes to all of them."""
    GRAPH_SAFE = "graph-safe"
    """Dispatch, and attention in decodes: may run inside a captured graph."""


class Context(Protocol):
    """What core hands to every factory."""

    @property
    def rank(self) -> int:
        """Rank of this worker in its tensor-parallel group."""

    @property
    def world(self) -> int:
        """Size of that group."""

    @property
    def meet(self) -> str:
        """Where the ranks of the group find each other: what torch.distributed calls an init method. Empty with one."""

    @property
    def group(self) -> int:
        """Which of several groups this is, each of which serves the same model with a runner of its own."""

    @property
    def groups(self) -> int:
        """How many there are."""

    @property
    def commons(self) -> str:
        """Where the runners of all groups find each other, as `meet` says it; empty where they have no need to."""

    @property
    def device(self) -> str:
        """Torch-style device name, such as `cpu` or `cuda:0`; one of several ranks has the number of its own device."""

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""

    @property
    def log(self) -> logging.Logger:
        """A logger named after the offer."""

    @property
    def state_dir(self) -> Path:
        """A folder that the offer may write to."""


class Native(Protocol):
    """A store's own client with nothing of ours around it: what the throughput of a storage is held against.

    Each call moves one batch, from several threads at once, the fastest way that the client has; what the storage
    checks beyond that (its own checksums, locks, fallbacks) is left out. Raises where a page was not moved.
    """

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        """Store pages under new keys."""

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        """Fill `into` with pages that were put."""

    def close(self) -> None:
        """Release everything, the pages included."""


@dataclass(frozen=True, slots=True)
class NoConfig:
    """Settings of an offer that has none."""


@dataclass(frozen=True)
class Offer(Generic[T]):
    """One concrete piece under the name that a config uses for it.

    `make(config, context)` returns the piece and does the heavy imports. `config` is a frozen dataclass; its
    fields are the settings. `missing()` answers None where the piece can run on this machine, else one sentence.
    """

    name: str
    make: Callable[..., T]
    config: type = NoConfig
    missing: Callable[[], str | None] | None = None
    provides: frozenset[Capability] = frozenset()
    native: Callable[..., Native] | None = None
    """Storage: `native(config, context, arena)` is the client library alone, for `stepwell bench storage`."""


@dataclass(frozen=True)
class Part(Generic[T]):
    """A piece that another piece is made of.

    A field of this type in an offer's settings is chosen as a section is, from the offers that make such a piece:
    `[storage.fast] use = "file"`, with that offer's own settings beside it. A field that may also be one of some words,
    `Literal["auto"] | Part[PagedAttention]`, takes a name in the words' place, too.
    """

    offer: Offer[T]
    settings: object

    def make(self, context: Context) -> T:
        """The piece. Raises what its factory raises."""
        return self.offer.make(self.settings, context)

    @property
    def provides(self) -> frozenset[Capability]:
        """What it can do with these settings."""
        return provided(self.offer, self.settings)


ANY = frozenset({Capability.APART, Capability.NAMED_MEMORY, Capability.PERSISTENT})
"""What a piece made of parts has as soon as one of them has it; all else only where each of them does."""


@runtime_checkable
class Providing(Protocol):
    """Settings on which depends what an offer can do."""

    @property
    def provides(self) -> frozenset[Capability]:
        """What it can do with these settings, besides what the offer declares."""


def provided(offer: Offer[object], settings: object) -> frozenset[Capability]:
    """What an offer can do with these settings: of one that is made of parts, what they can."""
    declared = offer.provides | (settings.provides if isinstance(settings, Providing) else frozenset())
    parts = [value for value in vars_of(settings).values() if isinstance(value, Part)]
    if not parts:
        return declared
    each = [part.provides for part in parts]
    return declared | (frozenset.union(*each) & ANY) | (frozenset.intersection(*each) - ANY)


def vars_of(settings: object) -> dict[str, object]:
    """The fields of a settings object and their values."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `stepwell doctor`: ok, warn or fail, and what to do."""

    level: str
    text: str


@dataclass(frozen=True)
class Check:
    """A check that `stepwell doctor` runs; `run()` must not raise and should take under a second."""

    name: str
    run: Callable[[], Finding]
