"""Which replica a request goes to: a policy's choice, and the accounts that it chooses by.

The accounts are of what was sent, not of what replicas report: they are there at once, so that a hundred requests that
come in one moment see each other. The same holds for prefixes: while a request is under way, and a moment longer, its
replica counts as having its prompt, since the events that say so come late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index as whole_number

from stepwell.abc.route import Replica, RoutePolicy
from stepwell.route.prefix_index import PrefixIndex
from stepwell.said import said
from stepwell.schedule.request import Request
from stepwell.types import DIGEST_BYTES, TOKEN_BYTES


@dataclass(slots=True)
class _Account:
    """What one replica was sent."""

    waiting_tokens: int = 0
    running: int = 0
    sent: int = 0
    coming: Counter[bytes] = field(default_factory=Counter)
    """Digests of the pages of prompts under way there."""


@dataclass(slots=True)
class _Sent:
    """A request under way."""

    account: _Account
    waiting_tokens: int
    pages: Sequence[bytes]


class Router:
    """Chooses replicas and keeps the accounts. One thread; no clock, no I/O."""

    def __init__(self, policy: RoutePolicy, index: PrefixIndex, *, fault: Callable[[str], None] | None = None) -> None:
        """`fault` is told of answers of the policy that cannot be used; they are counted either way."""
        self._policy, self._index, self._fault = policy, index, fault
        self._accounts: dict[str, _Account] = {}
        self._there: frozenset[str] = frozenset()
        """Those that served when a request was last looked at."""
        self._sent: dict[str, _Sent] = {}
        self._settling: dict[str, _Sent] = {}
        self.faults = 0
        """Answers of the policy that could not be used; the replica with the fewest requests was taken."""

    def send(self, request: Request, replicas: Sequence[str]) -> str:
        """Choose one of these replicas, which serve, and note that the request goes there. Its `rid` is a new one."""
        pages = self._pages(request)
        seen = self._view(pages, replicas)
        at = self._choose(seen, len(request.tokens) // TOKEN_BYTES, request.routing_key)
        account = self._accounts[replicas[at]]
        work = max(0, len(request.tokens) // TOKEN_BYTES - seen[at].cached_tokens)
        self._sent[request.rid] = _Sent(account, work, pages if request.store else ())
        account.waiting_tokens += work
        account.running += 1
        account.sent += 1
        account.coming.update(pages if request.store else ())
        return replicas[at]

    def view(self, request: Request, replicas: Sequence[str]) -> list[Replica]:
        """What the policy is shown of a request."""
        return self._view(self._pages(request), replicas)

    def began(self, rid: str) -> None:
        """The first token of an answer has come."""
        sent = self._sent.get(rid)
        if sent is not None:
            sent.account.waiting_tokens -= sent.waiting_tokens
            sent.waiting_tokens = 0

    def ended(self, rid: str) -> None:
        """A request has ended, in whatever way. Its prompt still counts as coming, until `settled`."""
        self.began(rid)
        sent = self._sent.pop(rid, None)
        if sent is not None:
            sent.account.running -= 1
            self.settled(rid)
            self._settling[rid] = sent

    def settled(self, rid: str) -> None:
        """The events that a request left behind have come by now."""
        sent = self._settling.pop(rid, None)
        if sent is None:
            return
        coming = sent.account.coming
        coming.subtract(sent.pages)
        for digest in sent.pages:
            if coming[digest] <= 0:
                del coming[digest]

    def lost(self, replica: str) -> None:
        """A replica is gone with all it had; another of its name begins anew. Its requests have yet to be `ended`."""
        self._index.forget(replica)
        self._accounts.pop(replica, None)
        self._there -= {replica}

    @property
    def known(self) -> frozenset[str]:
        """Replicas of which there is an account."""
        return frozenset(self._accounts)

    # --- the choice --------------------------------------------------------------------------------------------

    def _choose(self, seen: Sequence[Replica], length: int, routing_key: str | None) -> int:
        try:
            chosen = whole_number(self._policy.choose(seen, length, routing_key))
            if 0 <= chosen < len(seen):
                return chosen
            what = f"chose {chosen} of {len(seen)} replicas"
        except Exception as error:
            what = f"raised {said(error)}"
        self.faults += 1
        if self._fault is not None:
            self._fault(f"the route policy {what}")
        return min(range(len(seen)), key=lambda at: (seen[at].running, seen[at].waiting_tokens))

    def _view(self, pages: Sequence[bytes], replicas: Sequence[str]) -> list[Replica]:
        self._meet(replicas)
        accounts = [self._accounts[name] for name in replicas]
        cached = self._index.cached(pages, replicas)
        coming = [_beginning(pages, account.coming) * self._index.page_size for account in accounts]
        return [
            Replica(name, max(there, soon), account.waiting_tokens, account.running, sent=account.sent)
            for name, account, there, soon in zip(replicas, accounts, cached, coming, strict=True)
        ]

    def _meet(self, replicas: Sequence[str]) -> None:
        """Who serves from now on, for the first time or again, counts as having been sent what the least of others was.

        Otherwise a policy that goes by that would send it all that comes.
        """
        there = frozenset(replicas)
        if there == self._there:
            return
        least = min((self._accounts[name].sent for name in there & self._there), default=0)
        for name in there - self._there:
            self._accounts.setdefault(name, _Account()).sent = least
        self._there = there

    def _pages(self, request: Request) -> list[bytes]:
        """Digests of the pages that a cache could answer for: at least one token is left to compute."""
        whole = (len(request.tokens) // TOKEN_BYTES - 1) // self._index.page_size
        known = min(len(request.digests), whole * DIGEST_BYTES)
        return [request.digests[at : at + DIGEST_BYTES] for at in range(0, known, DIGEST_BYTES)]


def _beginning(pages: Sequence[bytes], coming: Counter[bytes]) -> int:
    """How many leading pages are coming: whoever has a page has all before it, so halving finds the last."""
    return bisect_left(pages, True, key=lambda digest: digest not in coming) if coming else 0
