"""A desk to work a cache by hand: requests from end to end, copies that succeed at once, storage in a dictionary."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import pytest

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import WritePolicy
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.writers import WriteThrough
from stepwell.cache.cache import Cache, CacheShape, FetchOp, Lease, Match, StoreOp, Usage
from stepwell.types import DONE, MISSING, Cached, Full, GroupSpec, Need, PageResult, Tier

NAMESPACE = bytes(32)


def tokens(values: Iterable[int]) -> bytes:
    return array("i", values).tobytes()


class Desk:
    def __init__(
        self,
        *,
        page: int = 4,
        device: int | Sequence[int] = 64,
        host: int | Sequence[int] = 0,
        needs: Sequence[Need] = (Full(),),
        write: WritePolicy | None = None,
        retain: RetentionPolicy | None = None,
        storage: dict[bytes, int] | None = None,
    ) -> None:
        specs = tuple(GroupSpec(f"g{i}", need, 8, (i,)) for i, need in enumerate(needs))
        shape = CacheShape(
            specs,
            page,
            (device,) * len(specs) if isinstance(device, int) else tuple(device),
            (host,) * len(specs) if isinstance(host, int) else tuple(host),
        )
        self.cache = Cache(
            shape,
            evict=lambda tier, group: Lru(),
            write=write or WriteThrough(),
            retain=retain or Tail(),
            storage=storage is not None,
        )
        self.page = page
        self.storage = {} if storage is None else storage
        self.to_host = 0
        self.to_device = 0

    def admit(self, prompt: Iterable[int], upto: int | None = None, namespace: bytes = NAMESPACE) -> Lease | None:
        raw = tokens(prompt)
        lease = self.cache.admit(namespace, raw, lambda length: max(length, len(raw) // 4 if upto is None else upto))
        self.cache.audit()
        return lease

    def load(self, lease: Lease) -> None:
        for copy in lease.loads:
            self.to_device += len(copy.device)
            assert self.cache.loaded(lease, copy, [True] * len(copy.device))
        self.cache.audit()

    def serve(
        self,
        prompt: Sequence[int],
        answer: Sequence[int] = (),
        *,
        chunk: int = 10**9,
        namespace: bytes = NAMESPACE,
        expires: float | None = None,
    ) -> Cached:
        """A request from end to end: chunks, then one token at a time; the last sampled token is never computed."""
        lease = self.admit(prompt, 0, namespace)
        assert lease is not None
        self.load(lease)
        done = lease.cached.total
        whole = [*prompt, *answer]
        while done < len(prompt):
            done = min(done + chunk, len(prompt))
            assert self.cache.extend(lease, done)
            self.cache.publish(lease, tokens(whole[:done]))
            self.cache.trim(lease, done)
            self.cache.audit()
        for done in range(len(prompt) + 1, len(whole)):
            assert self.cache.extend(lease, done)
            self.cache.trim(lease, done)
        self.cache.publish(lease, tokens(whole[:done]), final=True, expires=expires)
        self.cache.close(lease)
        self.cache.audit()
        return lease.cached

    def save(self) -> int:
        pages = 0
        while copies := self.cache.saves(1000):
            for copy in copies:
                pages += len(copy.device)
                self.cache.saved(copy, [True] * len(copy.device))
        self.to_host += pages
        self.cache.audit()
        return pages

    def put(self, op: StoreOp) -> list[PageResult]:
        self.storage.update(dict.fromkeys(op.keys, 1))
        return [DONE] * len(op.keys)

    def store(self) -> int:
        pages = 0
        while ops := self.cache.stores(1000):
            for op in ops:
                pages += len(op.keys)
                self.cache.stored(op, self.put(op))
        return pages

    def fetch(self, prompt: Sequence[int], limit: int = 1000) -> FetchOp | None:
        plan = self.cache.plan_fetch(NAMESPACE, tokens(prompt))
        if plan is None:
            return None
        return self.cache.start_fetch(plan, [[key in self.storage for key in keys] for keys in plan.keys], limit)

    def fetched(self, op: FetchOp, came: Sequence[int] | None = None) -> int:
        """`came`: how many pages of each read came; None: all."""
        results: list[list[PageResult]] = []
        for i, (_, keys, _) in enumerate(op.reads):
            good = len(keys) if came is None else came[i]
            results.append([DONE] * good + [MISSING] * (len(keys) - good))
        length = self.cache.fetched(op, results)
        self.cache.audit()
        return length

    def evict(self, tier: Tier = Tier.DEVICE, pages: int = 10**6) -> int:
        """Evict from every group, as a shortage would."""
        at = 0 if tier is Tier.DEVICE else 1
        freed = sum(
            self.cache._evictor.evict(at, group, min(pages, pool.total))
            for group, pool in enumerate(self.cache._pools[at])
        )
        self.cache.audit()
        return freed

    def match(self, prompt: Iterable[int], namespace: bytes = NAMESPACE) -> Match:
        return self.cache.match(namespace, tokens(prompt))

    def device(self, group: int = 0) -> Usage:
        return self.cache.usage()[Tier.DEVICE][group]

    def host(self, group: int = 0) -> Usage:
        return self.cache.usage()[Tier.HOST][group]


@pytest.fixture
def desk() -> type[Desk]:
    return Desk
