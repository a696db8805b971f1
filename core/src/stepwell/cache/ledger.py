"""The plain data that passes between a cache and its users, and the lease that a request holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stepwell.abc.runner import PageCopy
from stepwell.cache.node import Node
from stepwell.types import Cached, GroupSpec, Ids, PageKey


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache is made of."""

    groups: tuple[GroupSpec, ...]
    page_size: int
    device_pages: tuple[int, ...]
    """Per group."""
    host_pages: tuple[int, ...]
    """Per group; zeros: no host tier."""


class Match(NamedTuple):
    """What the tree knows of a prompt. Lengths are page multiples and leave at least one token to compute."""

    length: int
    """Longest usable prefix over device and host together."""
    device_length: int
    """Longest usable prefix on device alone; at most `length`."""
    device: tuple[Ids, ...]
    """Per group: device page ids of pages [first[g], length / page_size), -1 where host has to be loaded."""
    host: tuple[Ids, ...]
    """Per group: host page ids for exactly the pages whose device id is -1, -1 elsewhere."""
    first: tuple[int, ...]
    """Per group: the first page that is needed to continue at `length`."""


@dataclass(slots=True, eq=False)
class Lease:
    """Every page that one running request owns; made by `Cache.admit`, ended by `Cache.close`."""

    namespace: bytes
    tables: list[Ids]
    """Per group: device page ids by page index, -1 where released or not needed; grows by doubling, see `capacity`."""
    capacity: int
    """Tokens that the allocated pages can hold."""
    cached: Cached
    """Tokens not to be computed, by the tier they came from (storage: fetched to host for this request)."""
    loads: list[PageCopy] = field(default_factory=list)
    """Copies that the first step has to do. Its pages are published only after `Cache.loaded`."""
    edits: list[tuple[int, int, Ids]] = field(default_factory=list)
    """Changes of the tables (group, first page, ids) since the brain last took them (it clears the list)."""
    closed: bool = False
    pages: int = 0
    """Pages of the tables that are in use, counted from the first page of the prompt."""
    published: int = 0
    """Leading pages that are the tree's."""
    counted: int = 0
    """Leading pages whose nodes have this request counted as a use."""
    trimmed: list[int] = field(default_factory=list)
    """Per group: pages before this one were released or never needed."""
    priority: int = 0
    place: Node | None = None
    """Where in the tree `published` ends; None where that is inside of an edge."""
    loading: set[int] = field(default_factory=set)
    """Loads that have not ended."""
    fork: int = 0
    """Pages at which this path left another at admission, usable or not; 0: it left none."""
    prompt: int = 0
    """Tokens of the prompt; 0 once retention was asked about it."""
    broken: bool = False
    """A load failed: what is computed from here on is not to be published."""


@dataclass(frozen=True, slots=True, eq=False)
class Rescue:
    """What of a request that gave way host has, or soon will; it stays there until `Cache.let_go`."""

    copies: list[PageCopy]
    """Saves to do, each of which owns its pages until `Cache.saved`."""
    host: tuple[Ids, ...]
    """Per group: the pages that are held on host; of full groups the last of what was there before is enough."""


@dataclass(frozen=True, slots=True)
class StoreOp:
    """Host pages of one group on their way to storage; owned by the op until `Cache.stored`."""

    id: int
    group: int
    keys: tuple[PageKey, ...]
    host: Ids


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What to ask storage for: the pages of a prompt that neither device nor host has."""

    namespace: bytes
    tokens: bytes
    keys: tuple[tuple[PageKey, ...], ...]
    """Per group."""
    pages: tuple[tuple[int, ...], ...]
    """Per group: the page indices of `keys`, ascending."""


@dataclass(frozen=True, slots=True)
class FetchOp:
    """Host pages being filled from storage; owned by the op until `Cache.fetched`."""

    id: int
    plan: FetchPlan
    reads: tuple[tuple[int, tuple[PageKey, ...], Ids], ...]
    """(group, keys, host ids) a batch, in the order in which they are worth most."""
    pages: int
    """Pages over all reads."""

    @property
    def first(self) -> int:
        """Index of the lowest page that is read."""
        plan = self.plan
        return min(plan.pages[group][plan.keys[group].index(keys[0])] for group, keys, _ in self.reads if keys)


@dataclass(slots=True)
class CacheStats:
    """Counters since the start, in pages unless said."""

    saved: int = 0
    loaded: int = 0
    stored: int = 0
    fetched: int = 0
    save_failed: int = 0
    load_failed: int = 0
    store_failed: int = 0
    fetch_failed: int = 0
    fetch_missing: int = 0
    evicted_device: int = 0
    evicted_host: int = 0
    dropped_dirty: int = 0
    """Device pages evicted without a host copy that the write policy had wanted."""
    skipped_saves: int = 0
    """Saves wanted, not made: no host page was free or clean."""
    rescued: int = 0
    """Saves begun for requests that gave way."""
    rescue_dropped: int = 0
    """Pages of requests that gave way for which host had no room."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Pages of one group in one tier, now. free + limbo + tree_only + held = total."""

    total: int
    free: int
    limbo: int
    tree_only: int
    held: int
