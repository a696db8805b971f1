"""How many of the requests that finished could go on from where they ended, with nothing computed again."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.cache.cache import Cache
from stepwell.replay.result import Restorable
from stepwell.types import TOKEN_BYTES

NEXT = bytes(TOKEN_BYTES)
"""Some token that a request goes on with: a match leaves one to compute."""


class Restoring:
    """Asks the cache, each time that `every` requests have finished and at the end, for all that finished so far.

    Asking is no use of a page: what is evicted next does not depend on it. `tokens`: all of a request's that have K and
    V, prompt and answer, by the request's number.
    """

    def __init__(self, cache: Cache, namespace: bytes, every: int, tokens: Callable[[int], bytes]) -> None:
        self._cache = cache
        self._namespace = namespace
        self._every = every
        self._tokens = tokens
        self._finished: list[int] = []
        self._found = Restorable(every)

    def finished(self, number: int) -> None:
        """A request finished, and what it leaves behind is in the tree."""
        self._finished.append(number)
        if self._every and len(self._finished) % self._every == 0:
            self._count()

    def end(self) -> Restorable:
        """The last count, and all of them."""
        if self._every and self._finished and len(self._finished) % self._every:
            self._count()
        return self._found

    def _count(self) -> None:
        step = self._cache.shape.page_size * TOKEN_BYTES
        there = 0
        for number in self._finished:
            tokens = self._tokens(number)
            whole = len(tokens) // step * step
            there += whole > 0 and self._cache.probe(self._namespace, tokens[:whole] + NEXT) * TOKEN_BYTES == whole
        self._found.samples.append(there)
