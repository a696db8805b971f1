"""What may run: refusal of what never fits, chunks under a budget, and room kept so that running requests go on."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stepwell.abc.runner import ModelInfo
from stepwell.cache.cache import Cache
from stepwell.cache.groups import UNBOUNDED, pages_of
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.request import Request
from stepwell.types import TOKEN_BYTES

SEEDS = 1 << 63
LONGEST_S = 1e9
_RANGES = (
    ("temperature", 0.0, 1e6),
    ("top_k", -1, math.inf),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
)


def refusal(request: Request, cache: Cache, model: ModelInfo) -> str | None:
    """Why a request can never run, with the limit; None where it can. Entry and admission both go by this."""
    prompt, new = len(request.tokens) // TOKEN_BYTES, request.sampling.max_tokens
    if not prompt or len(request.tokens) % TOKEN_BYTES:
        return "the prompt is empty" if not prompt else "the prompt is not a whole number of int32 tokens"
    if new < 1:
        return f"max_tokens is {new}; it must be at least 1"
    if prompt + new > model.context:
        return (
            f"a prompt of {prompt} tokens and an answer of up to {new} are more than the model's context"
            f" of {model.context} tokens"
        )
    if not cache.fits(prompt + new):
        return (
            f"a prompt of {prompt} tokens and an answer of up to {new} never fit into device memory,"
            f" which holds requests of up to {cache.largest()} tokens"
        )
    return _unfit(request)


def _unfit(request: Request) -> str | None:
    """What of a request no policy or runner could work with, which would cost others that run beside it."""
    asked = request.sampling
    if type(request.priority) is not int:
        return f"priority is {request.priority!r}; it must be a whole number"
    if request.ttl is not None and not _within(request.ttl, 0, LONGEST_S):
        return f"ttl is {request.ttl!r}; it must be a number of seconds from 0 to {LONGEST_S:g}"
    for name, low, high in _RANGES:
        value = getattr(asked, name)
        if not _within(value, low, high):
            return f"{name} is {value!r}; it must be from {low:g} to {high:g}"
    if asked.repetition_penalty == 0:
        return "repetition_penalty is 0; it must be above 0"
    if asked.seed is not None and not -SEEDS <= asked.seed < SEEDS:
        return f"seed is {asked.seed}; it must fit into 64 bits"
    if asked.logprobs is not None and asked.logprobs < 0:
        return f"logprobs is {asked.logprobs}; it must be 0 or more"
    return None


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high


def chunk_end(start: int, target: int, budget: int, page: int) -> int:
    """Where a chunk that starts at `start` ends: at `target`, or at the last page boundary within the budget."""
    if target - start <= budget:
        return target
    return max(start, (start + budget) // page * page)


class Forecast:
    """The share of the tokens that running requests may still generate for which pages are kept.

    Clients declare far more tokens than they get, and requests end one by one, so not all of them are needed at once.
    The share jumps up when pages ran out and sinks slowly while requests finish.
    """

    FLOOR = 0.1

    def __init__(self, share: float) -> None:
        self.share = share
        self._floor = min(share, self.FLOOR)

    def ran_out(self) -> None:
        """A request had to be retracted."""
        self.share += (1 - self.share) / 3

    def finished(self) -> None:
        """A request came to its end."""
        self.share += (self._floor - self.share) / 128


class Room:
    """What running requests need yet, against which an admission pass holds each candidate.

    Full attention grows by every token. A window grows until it is whole: who holds one needs no second.
    """

    def __init__(self, cache: Cache, share: float, seats: Iterable[Seat]) -> None:
        self._cache = cache
        self._page = cache.shape.page_size
        self._groups = cache.geometry.groups
        self._peaks = tuple(None if group.full else group.runs_in(UNBOUNDED) + 1 for group in self._groups)
        """Most pages that a request holds of a group with a window, but for chunks in flight; None: full attention."""
        self._full = tuple(peak is None for peak in self._peaks)
        self._share = share
        self._new = self._rest = self._count = 0
        self._growth = [0] * len(self._peaks)
        for seat in seats:
            self.add(seat)

    def add(self, seat: Seat) -> None:
        """One more runs."""
        lease = seat.lease
        self._count += 1
        self._new += seat.last - max(seat.planned, seat.target)
        rest = max(0, seat.target - lease.capacity)
        self._rest += rest
        new = max(0, seat.last - max(lease.capacity, seat.target))
        for group, first in enumerate(lease.trimmed):
            self._growth[group] += self._grows(group, lease.pages - first, rest, new)

    def _grows(self, group: int, held: int, rest: int, new: int) -> int:
        """Pages that a window of `held` pages takes yet, with `rest` tokens to prefill and up to `new` to generate."""
        peak = self._peaks[group]
        if peak is None or held >= peak or not rest + new:
            return 0
        return min(peak - held, max(1, pages_of(rest + int(self._share * new), self._page)))

    def reserve(self, job: Job, upto: int) -> tuple[int, ...]:
        """Pages of each group to keep free or evictable beside an admission up to position `upto`.

        None where nothing runs: a lone request needs no reserve, so whatever passed the entry is admitted in the end.
        """
        if not self._count:
            return (0,) * len(self._full)
        full = self._whole(job, upto)
        pages, rest = pages_of(upto, self._page), max(0, job.length - upto)
        new = job.max_new - job.generated
        return tuple(
            full if whole else grown + self._grows(group, pages - first, rest, new)
            for group, (whole, grown, first) in enumerate(
                zip(self._full, self._growth, self._first(job.probed), strict=True)
            )
        )

    def _first(self, length: int) -> tuple[int, ...]:
        """First page of each group that a request holds which starts at `length`."""
        whole = length // self._page
        return tuple(group.first(whole) for group in self._groups)

    def _whole(self, job: Job, upto: int) -> int:
        if not self._count:
            return 0
        new = self._share * (self._new + job.max_new - job.generated)
        return int((new + self._rest + job.length - upto) / self._page) + self._count + 1

    def rules_out(self, job: Job, matched: int) -> bool:
        """Whether the candidate cannot fit, told without trying: its match may hold all that could be evicted."""
        if not any(self._full):
            return False
        need = (job.length - matched) // self._page + self._whole(job, job.length)
        return any(whole and have < need for whole, have in zip(self._full, self._cache.available(), strict=True))
