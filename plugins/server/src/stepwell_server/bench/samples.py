"""One request as the client saw it. Every time is of `time.perf_counter`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell_server.bench.asks import Answer


@dataclass(slots=True)
class Sample:
    """When it was due, when it was sent, and when what came."""

    due: float
    """When it should have been sent: latencies count from here, so that a late client cannot hide a slow server."""
    sent: float
    arrivals: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Tokens of each arrival where they are told, else ones."""
    end: float = 0.0
    prompt: int | None = None
    output: int = 0
    cached: int | None = None
    failure: str | None = None
    retry_after: float = 0.0
    """Seconds for which the server wants to be left alone."""
    answer: Answer = field(default_factory=Answer)

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.arrivals[0] - self.due

    @property
    def latency(self) -> float:
        """Time to the end."""
        return self.end - self.due

    @property
    def tpot(self) -> float | None:
        """Mean time of each token after the first arrival; None where all came at once."""
        later = self.output - (self.counts[0] if self.counts else 0)
        if len(self.arrivals) < 2 or later < 1:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / later

    def gaps(self) -> list[float]:
        """Times between arrivals."""
        return [later - sooner for sooner, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def output_until(self, end: float) -> float:
        """Tokens that had come by then. Where arrivals do not tell how many they hold, they count as equal."""
        if self.end <= end or not self.arrivals:
            return self.output
        seen = sum(count for at, count in zip(self.arrivals, self.counts, strict=True) if at <= end)
        return self.output * seen / sum(self.counts)
