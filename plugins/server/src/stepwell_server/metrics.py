"""The front end's own metrics: requests, answers and errors, tokens by tier, times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stepwell.types import Cached

TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
LATENCY = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Meter:
    """The front end's metrics; one registry a server, no global."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.registry = CollectorRegistry()
        self.clock = clock
        registry = self.registry
        ProcessCollector(registry=registry)
        self._requests = Counter("stepwell_requests", "HTTP requests", ["route", "status"], registry=registry)
        self._errors = Counter("stepwell_errors", "Requests that failed, by kind", ["kind"], registry=registry)
        self._gone = Counter("stepwell_disconnects", "Requests whose client left before the end", registry=registry)
        self._prompt = Counter(
            "stepwell_prompt_tokens", "Prompt tokens, by where they came from", ["source"], registry=registry
        )
        self._answer = Counter("stepwell_completion_tokens", "Tokens answered", registry=registry)
        self._ended = Counter("stepwell_answers", "Answers, by how they ended", ["finish"], registry=registry)
        self._ttft = Histogram("stepwell_ttft_seconds", "Until an answer begins", buckets=TTFT, registry=registry)
        self._latency = Histogram("stepwell_latency_seconds", "Until it ends", buckets=LATENCY, registry=registry)
        self._between = Histogram(
            "stepwell_token_seconds", "Mean time a token after an answer's first", buckets=BETWEEN, registry=registry
        )
        for source in ("computed", "device", "host", "storage"):
            self._prompt.labels(source)

    def request(self, route: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(route, str(status)).inc()

    def error(self, kind: str) -> None:
        """A request failed."""
        self._errors.labels(kind).inc()

    def gone(self) -> None:
        """A client left."""
        self._gone.inc()

    def first(self, seconds: float) -> None:
        """An answer began."""
        self._ttft.observe(seconds)

    def ended(self, finish: str, prompt: int, cached: Cached, tokens: int, first_s: float, total_s: float) -> None:
        """An answer ended."""
        self._ended.labels(finish).inc()
        self._answer.inc(tokens)
        for source, count in (("device", cached.device), ("host", cached.host), ("storage", cached.storage)):
            self._prompt.labels(source).inc(count)
        self._prompt.labels("computed").inc(max(0, prompt - cached.total))
        self._latency.observe(total_s)
        if tokens > 1:
            self._between.observe((total_s - first_s) / (tokens - 1))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(_Plain(self.registry))


class _Plain(Collector):
    """A registry without the time at which each counter was made, which doubles the text and tells nobody anything."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
