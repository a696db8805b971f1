"""Fetches from storage for waiting requests: asked, started within a bound, stopped by policy, each ended exactly once.

Pages in flight belong to the fetch's op, not to its request: an abort or a stop changes what the request does, and the
pages come back when storage says that nothing writes to them any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.cache.cache import Cache
from stepwell.engine.actions import Action, Fetch, FetchEnded, FetchMoved, Queried, Query, StopFetch
from stepwell.engine.stats import Counters
from stepwell.schedule.fetching import Fetching, State
from stepwell.schedule.job import Job
from stepwell.types import Done, PageKey


class Fetches:
    """All fetches of one brain. `emit` takes the actions."""

    def __init__(
        self,
        cache: Cache,
        policy: PrefetchPolicy,
        page: int,
        page_bytes: tuple[int, ...],
        grace: float,
        counters: Counters,
        emit: Callable[[Action], None],
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._page = page
        self._page_bytes = page_bytes
        self._grace = grace
        self._counters = counters
        self._emit = emit
        self._queries: dict[str, Fetching] = {}
        self._planned: deque[Fetching] = deque()
        self._moving: dict[int, Fetching] = {}
        self._former: dict[int, Fetching] = {}
        """Those of a storage that is gone; their pages come back when its calls return, and count no more till then."""
        self._heads: dict[PageKey, Fetching] = {}
        self.pages = 0
        """Pages in flight over all fetches."""

    @property
    def open(self) -> int:
        """Questions and fetches that storage has not answered yet."""
        return len(self._moving) + len(self._queries)

    # --- a request comes, runs, goes -------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """Ask storage for what this request misses, if that is worth it."""
        job.fetch = None
        request = job.request
        plan = self._cache.plan_fetch(request.namespace, request.tokens, request.digests)
        if plan is None:
            return
        if not self._worth(max(map(len, plan.pages)) * self._page):
            self._counters.fetches_skipped += 1
            return
        fetching = job.fetch = Fetching(job, plan)
        first = self._heads.setdefault(fetching.head, fetching)
        if first is not fetching:
            first.followers.append(job)
            self._counters.fetches_followed += 1
            return
        self._queries[job.rid] = fetching
        self._emit(Query(job.rid, plan))

    def holds(self, job: Job, now: float) -> bool:
        """Whether a request that could run now has to wait for its fetch; asks the policy, which may end the wait."""
        fetching = job.fetch
        if fetching is None or fetching.settled:
            return False
        if fetching.state is State.STOPPING:
            return now < fetching.stopped + self._grace
        if fetching.since is None:
            fetching.since = now
        if not self._stops(fetching, now):
            return True
        self._counters.fetches_stopped += 1
        if fetching.state is not State.MOVING:
            self._revoke(fetching)
            return False
        self._stop(fetching, now)
        return True

    def forget(self, job: Job, now: float) -> None:
        """The request was aborted, or runs without its fetch."""
        fetching = job.fetch
        job.fetch = None
        if fetching is None or fetching.settled:
            return
        if fetching.state is State.MOVING:
            self._stop(fetching, now)
        elif fetching.state is not State.STOPPING:
            self._revoke(fetching)

    # --- storage answers -------------------------------------------------------------------------------------

    def queried(self, event: Queried) -> bool:
        """Storage said what it holds. True where a request may be able to run because of that."""
        fetching = self._queries.get(event.rid)
        if fetching is None:
            return False
        wanted = sum(map(sum, event.present))
        if wanted and list(map(len, event.present)) != list(map(len, fetching.plan.keys)):
            return False  # the answer to a request of the same name that has gone
        del self._queries[event.rid]
        fetching.present = event.present
        fetching.wanted = wanted
        if not fetching.wanted:
            self._revoke(fetching, alone=False)
            return True
        fetching.state = State.PLANNED
        self._planned.append(fetching)
        return self._start_planned()

    def moved(self, event: FetchMoved) -> bool:
        """A fetch got on, or does not. True where a request may be able to run because of that."""
        fetching = self._moving.get(event.id) or self._former.get(event.id)
        if fetching is None:
            return False
        fetching.done = event.done
        if not event.late:
            return False
        fetching.state = State.LATE
        self._release(fetching, alone=True)
        return True

    def ended(self, event: FetchEnded) -> bool:
        """A fetch ended; its good pages are on host now, and the others are free."""
        fetching = self._moving.pop(event.id, None) or self._former.get(event.id)
        if fetching is None:
            return False
        op = fetching.op
        assert op is not None
        if self._former.pop(event.id, None) is None:
            self.pages -= op.pages
        for (group, _, _), results in zip(op.reads, event.results, strict=False):
            good = sum(isinstance(result, Done) for result in results)
            self._counters.bytes_fetched += good * self._page_bytes[group]
        fetching.job.fetched_from = op.first * self._page
        fetching.job.fetched = self._cache.fetched(op, event.results)
        fetching.state = State.DONE
        self._release(fetching, alone=True)
        self._start_planned()
        return True

    def detach(self, now: float) -> None:
        """Storage is gone. Who only asked it runs without it, who reads gets what is in the air within the grace."""
        for fetching in [*self._queries.values(), *self._planned]:
            self._revoke(fetching)
        for fetching in self._moving.values():
            if fetching.state is State.MOVING:
                self._stop(fetching, now)
            self._release(fetching, alone=True)
        self._former |= self._moving
        self._moving = {}
        self.pages = 0

    # --- within ----------------------------------------------------------------------------------------------

    def _start_planned(self) -> bool:
        """Start fetches in order while their pages fit the bound; a large one that is alone gets part of its pages."""
        revoked = False
        while self._planned:
            fetching = self._planned[0]
            left = self._policy.max_pages - self.pages
            if left <= 0 or (fetching.wanted > left and self.pages):
                self._counters.fetches_delayed += 1
                break
            self._planned.popleft()
            op = self._cache.start_fetch(fetching.plan, fetching.present, left)
            if op is None:
                self._revoke(fetching)
                revoked = True
                continue
            fetching.op = op
            fetching.wanted = op.pages
            fetching.state = State.MOVING
            self._moving[op.id] = fetching
            self.pages += op.pages
            self._emit(Fetch(op))
        return revoked

    def _stop(self, fetching: Fetching, now: float) -> None:
        assert fetching.op is not None
        fetching.state = State.STOPPING
        fetching.stopped = now
        self._emit(StopFetch(fetching.op.id))

    def _revoke(self, fetching: Fetching, *, alone: bool = True) -> None:
        """It brings nothing. `alone`: for a reason of its own, so that its followers may have more luck."""
        if fetching.state is State.PLANNED and fetching in self._planned:
            self._planned.remove(fetching)
        self._queries.pop(fetching.job.rid, None)
        fetching.state = State.REVOKED
        self._counters.fetches_revoked += 1
        self._release(fetching, alone=alone)

    def _release(self, fetching: Fetching, *, alone: bool) -> None:
        """Let the followers ask for themselves, or share the verdict that storage has nothing.

        Where the first of them still misses the same page it leads the others, who then need not ask: thousands may
        follow, and be aborted one by one.
        """
        if self._heads.get(fetching.head) is fetching:
            del self._heads[fetching.head]
        followers, fetching.followers = fetching.followers, deque()
        while followers:
            job = followers.popleft()
            waiting = job.fetch
            if waiting is None or waiting.state is not State.QUEUED:
                continue
            if not alone:
                waiting.state = State.REVOKED
                self._counters.fetches_revoked += 1
                continue
            self.begin(job)
            if job.fetch is None:
                continue
            job.fetch.since = waiting.since
            if self._heads.get(fetching.head) is job.fetch:
                job.fetch.followers = followers
                return

    # --- the policy ------------------------------------------------------------------------------------------

    def _worth(self, missing_tokens: int) -> bool:
        try:
            return self._policy.max_pages > 0 and self._policy.start(missing_tokens)
        except Exception as error:
            self._counters.fault(f"prefetch start raised {error!r}")
            return False

    def _stops(self, fetching: Fetching, now: float) -> bool:
        try:
            return self._policy.stop(fetching.progress(now, self._page))
        except Exception as error:
            self._counters.fault(f"prefetch stop raised {error!r}")
            return True
