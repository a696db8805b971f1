"""The engine's numbers under /metrics, as its latest sign of life has them.

The names that operators build alarms on are fixed here. Whatever else an engine counts appears as it calls it, untyped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from stepwell.engine.messages import Pulse
from stepwell.engine.stats import CAUSES, REASONS
from stepwell.engine.tally import QUEUE_S, Waits
from stepwell.route.client import RoutedClient
from stepwell_server.memory import family
from stepwell_server.port import Engine

MOVED = {"bytes_loaded": "load", "bytes_saved": "save", "bytes_stored": "store", "bytes_fetched": "fetch"}
CACHED = {"cached_device": "device", "cached_host": "host", "cached_storage": "storage", "computed_tokens": "computed"}
RETRACTED = {f"retracted_{cause}": cause for cause in CAUSES}
SKIPPED = {f"skipped_{reason}": reason for reason in REASONS}
LABELLED = MOVED | CACHED | RETRACTED | SKIPPED
COUNTERS = {
    "admissions": "Times that a request got its pages, for the first time or again",
    "policy_faults": "Answers of policies that could not be used; the default was taken",
    "generated_tokens": "Tokens sampled",
    "step_errors": "Steps that failed as a whole",
    "audit_failures": "Times the cache's books were wrong",
    "pages_skipped_saves": "Saves that were wanted and not made: no host page was free or clean",
    "pages_dropped_dirty": "Device pages evicted without the host copy that was wanted",
}
BY = {"routing_key": "key", "tenant": "tenant"}
"""How series of a kind of name begin."""
ROWS = {
    "requests": "Requests that came",
    "admissions": "Times that one got its pages",
    "retractions": "Times that one gave its pages to others",
    "skips": "Times that an admission pass let one wait",
    "prompt_tokens": "Prompt tokens of requests that were admitted",
    "generated_tokens": "Tokens answered by requests that have ended",
    "queue_seconds": "Seconds from arrival to first admission, added up",
}
GAUGES = {"waiting": "Requests in the queue", "running": "Requests in the batch"}
FAILED = re.compile(r"storage_failed_(\w+)")
USAGE = re.compile(r"(device|host)_pages_(total|free|limbo|tree_only|held)\.(.+)")


class EngineCollector(Collector):
    """Asked by the registry at each scrape."""

    def __init__(self, engine: Callable[[], Engine | None], pulse_s: float, waiting: Callable[[], int]) -> None:
        self._engine, self._pulse_s, self._waiting = engine, pulse_s, waiting

    def collect(self) -> Iterator[Metric]:
        engine = self._engine()
        up = engine is not None and engine.alive(self._pulse_s)
        yield GaugeMetricFamily("stepwell_engine_up", "Whether the engine's serving loop is heard", value=float(up))
        yield GaugeMetricFamily("stepwell_front_waiting", "Answers not begun, as the front end sees", self._waiting())
        memory = GaugeMetricFamily("stepwell_resident_bytes", "Memory of each process", labels=["process"])
        for process, resident in family().items():
            memory.add_metric([process], resident)
        yield memory
        if engine is None:
            return
        yield CounterMetricFamily("stepwell_engine_losses", "How often the engine was lost", engine.restarts)
        if isinstance(engine, RoutedClient):
            yield from of_groups(engine, self._pulse_s)
        if engine.last_pulse is not None:
            yield from of_pulse(engine.last_pulse)


def of_groups(engine: RoutedClient, pulse_s: float) -> Iterator[Metric]:
    """What each of several engines does; all else is told of all together."""
    up = GaugeMetricFamily("stepwell_group_up", "Whether a group's serving loop is heard", labels=["group"])
    running = GaugeMetricFamily("stepwell_group_running", "Requests in a group's batch", labels=["group"])
    waiting = GaugeMetricFamily("stepwell_group_waiting", "Requests in a group's queue", labels=["group"])
    for name, member in engine.members.items():
        up.add_metric([name], float(member.alive(pulse_s)))
        pulse = None if member.why_down else member.last_pulse
        running.add_metric([name], pulse.running if pulse else 0)
        waiting.add_metric([name], pulse.waiting if pulse else 0)
    yield from (up, running, waiting)


def of_pulse(pulse: Pulse) -> Iterator[Metric]:
    """The metrics of a sign of life."""
    yield CounterMetricFamily("stepwell_engine_ticks", "Turns of the serving loop", pulse.ticks)
    yield GaugeMetricFamily("stepwell_running", "Requests in the batch", pulse.running)
    yield GaugeMetricFamily("stepwell_waiting", "Requests in the queue", pulse.waiting)
    values = pulse.values
    yield _labelled("stepwell_moved_bytes", "Bytes moved between tiers", "direction", MOVED, values)
    yield _labelled("stepwell_engine_tokens", "Tokens by where they came from", "source", CACHED, values)
    yield _labelled(
        "stepwell_retractions", "Running requests sent back to the queue to go on later", "cause", RETRACTED, values
    )
    yield _labelled(
        "stepwell_admission_skips", "Times that an admission pass let a request wait", "reason", SKIPPED, values
    )
    yield _queue_times(pulse.told.waits)
    yield from _by_name(pulse.told.by)
    pages = GaugeMetricFamily("stepwell_pages", "Pages by tier, group and owner", labels=["tier", "group", "state"])
    failed = CounterMetricFamily("stepwell_storage_failures", "Storage calls that failed, by reason", labels=["reason"])
    rest: dict[str, list[tuple[str, float]]] = {}
    for name, value in sorted(values.items()):
        if name in LABELLED or name in ("ticks", "retractions"):
            continue
        if usage := USAGE.fullmatch(name):
            pages.add_metric([usage[1], usage[3], usage[2]], value)
        elif failure := FAILED.fullmatch(name):
            failed.add_metric([failure[1]], value)
        elif name in COUNTERS:
            yield CounterMetricFamily(f"stepwell_{name}", COUNTERS[name], value)
        else:
            plain, _, part = name.partition(".")
            rest.setdefault(re.sub(r"\W", "_", plain), []).append((part, value))
    yield pages
    yield failed
    for name, found in rest.items():
        labels = ["part"] if any(part for part, _ in found) else []
        other = UnknownMetricFamily(f"stepwell_engine_{name}", "As the engine counts it", labels=labels)
        for part, value in found:
            other.add_metric([part] if labels else [], value)
        yield other


def _labelled(
    name: str, text: str, label: str, names: Mapping[str, str], values: Mapping[str, float]
) -> CounterMetricFamily:
    metric = CounterMetricFamily(name, text, labels=[label])
    for key, value in names.items():
        metric.add_metric([value], values.get(key, 0.0))
    return metric


def _queue_times(waits: Waits) -> Metric:
    bounds = (*(str(bound) for bound in QUEUE_S), "+Inf")
    buckets = list(zip(bounds, accumulate(waits.counts), strict=True))
    return HistogramMetricFamily(
        "stepwell_queue_seconds", "From arrival to first admission", buckets=buckets, sum_value=waits.seconds
    )


def _by_name(by: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[Metric]:
    """Series by routing key and by tenant; the names are what clients sent, bounded by the engine."""
    for kind, rows in by.items():
        for what, text in (ROWS | GAUGES).items():
            family = GaugeMetricFamily if what in GAUGES else CounterMetricFamily
            metric = family(f"stepwell_{BY[kind]}_{what}", f"{text}, by {kind}", labels=[kind])
            for name, row in rows.items():
                metric.add_metric([name], row[what])
            yield metric
