"""`--instant`: the index alone, with time taken out; each request's blocks are inserted at once, in arrival order.

The rules are those under which hit tokens of public traces are known: a request hits the leading run of its blocks
that are cached, its missing blocks are then inserted, the least recent leaf leaves when the cache is full, never one
of this request's own, and where no leaf may go the rest of the request is not inserted. Answers are not inserted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from stepwell.abc.evict import EvictionPolicy
from stepwell.cache.instant import InstantCache
from stepwell.replay.result import Hits, Result
from stepwell.replay.trace import Arrival


def run(trace: Sequence[Arrival], pages: int, policy: EvictionPolicy | None = None) -> Result:
    """Drive the index with a page for each block of the trace; a partial last block counts its own tokens."""
    begin = time.perf_counter()
    cache = InstantCache(pages, 1, policy)
    half = len(trace) // 2
    hits = [0] * len(trace)
    for number, arrival in enumerate(trace):
        hits[number] = arrival.block_tokens(cache.request(arrival.ids.tobytes()))
    inputs = [arrival.input_length for arrival in trace]
    return Result(
        all=Hits(sum(inputs), device=sum(hits)),
        last_half=Hits(sum(inputs[half:]), device=sum(hits[half:])),
        requests=len(trace),
        wall_s=time.perf_counter() - begin,
    )
