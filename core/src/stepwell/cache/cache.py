"""The facade of the cache: everything a brain asks of it.

SKELETON of the contract; the implementation replaces it and keeps these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.runner import PageCopy
from stepwell.abc.sink import Event
from stepwell.abc.write import WritePolicy
from stepwell.types import Cached, GroupSpec, Ids, PageKey, PageResult, Tier


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache is made of."""

    groups: tuple[GroupSpec, ...]
    page_size: int
    device_pages: tuple[int, ...]
    """Per group."""
    host_pages: tuple[int, ...]
    """Per group; zeros: no host tier."""


@dataclass(frozen=True, slots=True)
class Match:
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


@dataclass(frozen=True, slots=True)
class Usage:
    """Pages of one group in one tier, now. free + limbo + tree_only + held = total."""

    total: int
    free: int
    limbo: int
    tree_only: int
    held: int


class Cache:
    """All page bookkeeping of one brain. One thread; no clock, no I/O, no tensor.

    Tokens are int32 bytes throughout (4 bytes a token); lengths are in tokens. A namespace is 32 bytes (`keys.py`).
    """

    shape: CacheShape
    stats: CacheStats

    def __init__(
        self,
        shape: CacheShape,
        *,
        evict: Callable[[Tier, GroupSpec], EvictionPolicy],
        write: WritePolicy,
        retain: RetentionPolicy,
        storage: bool = False,
        events: bool = False,
    ) -> None:
        """`storage`: whether stores and fetches are planned at all; `events`: whether `drain_events` collects."""

    # --- look up -----------------------------------------------------------------------------------------------

    def match(self, namespace: bytes, tokens: bytes) -> Match:
        """Longest usable prefix of a prompt over device and host. Counts as a use: recency is kept, nothing else changes."""
        raise NotImplementedError

    def probe(self, namespace: bytes, tokens: bytes) -> int:
        """`match(...).length` without ids and without counting as a use."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """Changes whenever an answer of `probe` may have changed."""
        raise NotImplementedError

    # --- a request's pages -------------------------------------------------------------------------------------

    def fits(self, length: int) -> bool:
        """Whether a request of `length` tokens (prompt and answer) can ever run alone, per group, windows considered."""
        raise NotImplementedError

    def largest(self) -> int:
        """The largest length for which `fits` holds (for the refusal's message)."""
        raise NotImplementedError

    def admit(self, namespace: bytes, tokens: bytes, upto: Callable[[int], int], *, load: bool = True,
              reserve: int | Sequence[int] = 0, priority: int = 0, fetched: int = 0) -> Lease | None:
        """Match a prompt, take the pages found, and allocate those to load and to compute up to `upto(matched length)`.

        One step, so nothing found can be evicted in between. None, and nothing changed, where room cannot be made while
        `reserve` pages of each group (or so many of each, by group) stay free or evictable. `load=False`: use device pages only (after a failed load).
        `fetched`: leading tokens known to have come from storage for this request (they count as `cached.storage`).
        """
        raise NotImplementedError

    def extend(self, lease: Lease, upto: int) -> bool:
        """Allocate pages up to `upto` tokens. False, and nothing changed, where room cannot be made."""
        raise NotImplementedError

    def publish(self, lease: Lease, tokens: bytes, *, final: bool = False, expires: float | None = None) -> None:
        """Put the whole pages of `tokens`, all computed and written, into the tree.

        Where the tree has a page already the lease adopts it and its own goes to limbo (see `Lease.edits`). Each call
        gives a prefix extension of the last. `final`: the request ends here (retention applies). Write policy is asked.
        """
        raise NotImplementedError

    def trim(self, lease: Lease, length: int) -> None:
        """Release pages that no group needs to continue at `length` and beyond. Never inside ceil_p(max(W, p))."""
        raise NotImplementedError

    def close(self, lease: Lease) -> None:
        """Give everything back, from any state. A second call does nothing. Loads in flight keep their pages until `loaded`."""
        raise NotImplementedError

    def available(self) -> tuple[int, ...]:
        """Per group: device pages that are free or could be evicted now."""
        raise NotImplementedError

    def step_launched(self, number: int) -> None:
        """A step is in flight: device pages released from now on wait in limbo until it has completed."""
        raise NotImplementedError

    def step_completed(self, number: int) -> None:
        """Steps up to `number` have completed: their limbo is freed."""
        raise NotImplementedError

    # --- between device and host -------------------------------------------------------------------------------

    def loaded(self, lease: Lease, copy: PageCopy, ok: Sequence[bool]) -> bool:
        """A load of `lease.loads` ended (also when the lease is closed by then). Pages that came become visible on device.

        True if all came. Where not, the failed host pages are dropped from the tree and the request must be admitted anew.
        """
        raise NotImplementedError

    def saves(self, limit: int) -> list[PageCopy]:
        """Take up to `limit` pages of saves that the write policy asked for; each owns its pages until `saved`."""
        raise NotImplementedError

    def saved(self, copy: PageCopy, ok: Sequence[bool]) -> None:
        """A save ended; pages that came become visible on host, and the write policy is asked about the store."""
        raise NotImplementedError

    # --- between host and storage ------------------------------------------------------------------------------

    def stores(self, limit: int) -> list[StoreOp]:
        """Take up to `limit` pages of stores that the write policy asked for."""
        raise NotImplementedError

    def stored(self, op: StoreOp, results: Sequence[PageResult]) -> None:
        """A store ended; one result a page."""
        raise NotImplementedError

    def plan_fetch(self, namespace: bytes, tokens: bytes, digests: bytes = b"") -> FetchPlan | None:
        """What storage could add for this prompt; None if nothing. `digests`: the page digests, where known (32 bytes each)."""
        raise NotImplementedError

    def start_fetch(self, plan: FetchPlan, present: Sequence[Sequence[bool]], limit: int) -> FetchOp | None:
        """Allocate host pages for what is `present` (per group, parallel to `plan.keys`) and useful, up to `limit` pages."""
        raise NotImplementedError

    def fetched(self, op: FetchOp, results: Sequence[Sequence[PageResult]]) -> int:
        """A fetch ended, also one that was given up; results per read of `op.reads` (fewer: the rest was not tried).

        Good pages become visible on host where they continue what is there; the rest is freed. Answers the usable length.
        """
        raise NotImplementedError

    # --- the whole ---------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Drop pages whose `expires` has passed and that nobody else used since."""
        raise NotImplementedError

    def flush(self) -> None:
        """Forget everything that no request or copy holds, on device and host."""
        raise NotImplementedError

    def drain_events(self) -> list[Event]:
        """Events since the last call."""
        raise NotImplementedError

    def usage(self) -> dict[Tier, tuple[Usage, ...]]:
        """Per tier (device, host) and group."""
        raise NotImplementedError

    def audit(self) -> None:
        """Prove ownership: no id twice, free + limbo + tree-only + held = total in every pool. Raises AuditError."""
        raise NotImplementedError
