"""What may run: refusal of what never fits, chunks under a budget, and room kept so that running requests go on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy

from stepwell.abc.runner import ModelInfo
from stepwell.cache.cache import Cache
from stepwell.cache.groups import UNBOUNDED, pages_of
from stepwell.schedule.forecast import Forecast
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


class Room:
    """What running requests need yet, against which an admission pass holds each candidate.

    Full attention grows by every token. A window grows until it is whole: who holds one needs no second.
    """

    def __init__(self, cache: Cache, forecast: Forecast, seats: Iterable[Seat]) -> None:
        self._cache = cache
        self._page = cache.shape.page_size
        self._groups = cache.geometry.groups
        self._peaks = tuple(None if group.full else group.runs_in(UNBOUNDED) + 1 for group in self._groups)
        """Most pages that a request holds of a group with a window, but for chunks in flight; None: full attention."""
        self._full = tuple(peak is None for peak in self._peaks)
        self._windows = cache.geometry.windows
        self._forecast = forecast
        self._margin = forecast.margin
        self.running = 0
        """Requests that it reckons with."""
        self._new = 0.0
        self._rest = 0
        self._growth = [0] * len(self._peaks)
        self._reckon(seats, 1)

    def add(self, seat: Seat) -> None:
        """One more runs."""
        self._reckon((seat,), 1)

    def without(self, seats: Iterable[Seat]) -> Room:
        """As it would be if these did not run."""
        room = copy(self)
        room._growth = list(self._growth)
        room._reckon(seats, -1)
        return room

    def _reckon(self, seats: Iterable[Seat], sign: int) -> None:
        """Made for all that run in every pass: a fraction of a microsecond each."""
        windows = self._windows
        new, running = 0.0, 0
        for seat in seats:
            if seat.done >= seat.foreseen_at:
                self._foresee(seat)
            planned, target = seat.planned, seat.target
            new += seat.foreseen - (planned if planned > target else target)
            running += 1
            if windows:
                self._reckon_windows(seat, sign)
        self._new += sign * new
        self.running += sign * running

    def _reckon_windows(self, seat: Seat, sign: int) -> None:
        """Only where there are windows does a request get pages for a part of its prompt."""
        lease, target = seat.lease, seat.target
        rest = max(0, target - lease.capacity)
        new = max(0.0, seat.foreseen - max(lease.capacity, target))
        self._rest += sign * rest
        for group in self._windows:
            self._growth[group] += sign * self._grows(group, lease.pages - lease.trimmed[group], rest, new)

    def _foresee(self, seat: Seat) -> None:
        """Where a request will probably end; asked again a page further, which is exact enough."""
        job = seat.job
        generated = max(job.generated_before, seat.done - seat.base)
        expected = self._forecast.expected(generated, job.max_new)
        seat.foreseen = seat.base + generated + expected
        seat.foreseen_at = seat.done + max(1, min(self._page, int(expected)))

    def _grows(self, group: int, held: int, rest: int, new: float) -> int:
        """Pages that a window of `held` pages takes yet, with `rest` tokens to prefill and up to `new` to generate."""
        peak = self._peaks[group]
        if peak is None or held >= peak or not rest + new:
            return 0
        return min(peak - held, max(1, pages_of(rest + int(self._margin * new), self._page)))

    def reserve(self, job: Job, upto: int) -> tuple[int, ...]:
        """Pages of each group to keep free or evictable beside an admission up to position `upto`.

        None where nothing runs: a lone request needs no reserve, so whatever passed the entry is admitted in the end.
        """
        if not self.running:
            return (0,) * len(self._full)
        full = self._whole(job, upto)
        if not self._windows:
            return (full,) * len(self._full)
        pages, rest = pages_of(upto, self._page), max(0, job.length - upto)
        new = self._forecast.expected(job.generated, job.max_new)
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
        if not self.running:
            return 0
        new = self._margin * (self._new + self._forecast.expected(job.generated, job.max_new))
        return int((new + self._rest + job.length - upto) / self._page) + self.running + 1

    def rules_out(self, job: Job, matched: int) -> bool:
        """Whether the candidate cannot fit, told without trying: its match may hold all that could be evicted."""
        if not any(self._full):
            return False
        need = (job.length - matched) // self._page + self._whole(job, job.length)
        return any(whole and have < need for whole, have in zip(self._full, self._cache.available(), strict=True))
