"""From samples to figures: pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from stepwell_server.bench.results import Client, Price, Spread
from stepwell_server.bench.samples import Sample

LAG_S = 0.002
"""A client whose loop comes so much late is slow only where the server's times are not long beside it."""
SHARE = 0.1
BUSY = 0.85
"""Share of a core above which a client in a process of its own may be what limits."""
REASONS = 8
"""Different reasons of failures that are told apart."""
OTHER = "other reasons"


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and percentiles, these interpolated between neighbours; None of nothing."""
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Spread(_short(float(np.mean(values))), _short(p50), _short(p90), _short(p99), _short(max(values)))


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def reasons(samples: Iterable[Sample]) -> dict[str, int]:
    """Failures by reason, the most frequent first."""
    found = Counter(one.failure for one in samples if one.failure is not None).most_common()
    kept = {reason: number for reason, number in found[:REASONS]}
    left = sum(number for _, number in found[REASONS:])
    return kept | ({OTHER: left} if left else {})


def window_end(samples: Sequence[Sample], begin: float, seconds: float | None) -> float:
    """When counting ends: with the last request, or when the time is up for which requests were sent."""
    last = max((one.end for one in samples), default=begin)
    return last if seconds is None else min(last, begin + seconds)


def client(samples: Sequence[Sample], lags: Sequence[float], cpu_share: float | None, most_running: int) -> Client:
    """How the client did, and what makes its figures doubtful. `cpu_share` None: it shares its process with the engine.

    There arrivals get their time on the engine's thread, so a late loop only delays the next request.
    """
    lag, late = spread(lags), spread([one.sent - one.due for one in samples])
    first = _median(one.ttft for one in samples)
    if cpu_share is None:
        typical = _median(one.latency for one in samples)
    else:
        typical = _median(gap for one in samples for gap in one.gaps())
    doubts = []
    if lag is not None and lag.p99 > max(LAG_S, SHARE * typical):
        doubts.append(f"its event loop came {lag.p99 * 1e3:.1f} ms late in one of a hundred looks")
    if late is not None and late.p99 > max(LAG_S, SHARE * first):
        doubts.append(f"it sent one of a hundred requests {late.p99 * 1e3:.1f} ms late")
    if cpu_share is not None and cpu_share > BUSY:
        doubts.append(f"it used {cpu_share:.0%} of a core, and has one")
    return Client(
        lag_p99_s=lag.p99 if lag else 0.0,
        lag_max_s=lag.max if lag else 0.0,
        late_p99_s=late.p99 if late else 0.0,
        late_max_s=late.max if late else 0.0,
        cpu_share=None if cpu_share is None else round(cpu_share, 3),
        most_running=most_running,
        kept_up=not doubts,
        doubts=doubts,
    )


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values) or [0.0]))


def price(output_per_s: float, total_per_s: float | None, gpus: int, per_hour: float | None) -> Price | None:
    """What a million tokens take; None where none came."""
    if not output_per_s:
        return None
    output_s = gpus * 1e6 / output_per_s
    total_s = gpus * 1e6 / total_per_s if total_per_s else None
    return Price(
        gpu_seconds_per_million_output=round(output_s, 2),
        gpu_seconds_per_million_total=None if total_s is None else round(total_s, 2),
        per_million_output=_cost(output_s, per_hour),
        per_million_total=_cost(total_s, per_hour),
    )


def _cost(seconds: float | None, per_hour: float | None) -> float | None:
    return None if seconds is None or per_hour is None else round(seconds * per_hour / 3600, 6)
