"""The result of a load test: what it holds, and how it is shown."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a time, in seconds."""

    p50: float
    p90: float
    p99: float
    max: float


class Found(msgspec.Struct):
    """What came out."""

    clients: int
    seconds: float
    completed: int
    aborted: int
    errors: dict[str, int]
    tokens: int
    tokens_per_s: float
    cached_share: float
    """Of the prompt tokens of completed answers."""
    ttft_s: Spread | None
    latency_s: Spread | None
    memory: list[dict[str, float]]
    """Resident MiB by process, over time."""
    rest: dict[str, float]
    """Requests and pages once all clients had gone."""
    audit: str

    @property
    def clean(self) -> bool:
        """No error, nothing left running, books in order."""
        still = self.rest.get("running", 0) + self.rest.get("waiting", 0) + self.rest.get("pages_held", 0)
        return not self.errors and still == 0 and self.audit in ("clean", "not asked for") and self.completed > 0


def spread(values: list[float]) -> Spread | None:
    """Percentiles; None of nothing."""
    if not values:
        return None
    ranked = sorted(values)
    at = [ranked[min(len(ranked) - 1, int(len(ranked) * share))] for share in (0.5, 0.9, 0.99)]
    return Spread(*(round(value, 4) for value in (*at, ranked[-1])))


def report(found: Found, console: Console) -> None:
    """Print it."""
    table = Table("", "", title=f"{found.clients} clients, {found.seconds:.0f} s", show_header=False)
    table.add_row("answers", f"{found.completed} complete, {found.aborted} broken off")
    table.add_row("errors", ", ".join(f"{count} x {kind}" for kind, count in found.errors.items()) or "none")
    table.add_row(
        "tokens", f"{found.tokens}, {found.tokens_per_s:.0f} a second; {found.cached_share:.0%} of prompts cached"
    )
    for name, times in (("time to first token", found.ttft_s), ("latency", found.latency_s)):
        if times is not None:
            table.add_row(name, f"p50 {times.p50:.3f}  p90 {times.p90:.3f}  p99 {times.p99:.3f}  max {times.max:.3f} s")
    middle = found.memory[len(found.memory) // 2]
    for process in [name for name in found.memory[-1] if name != "t"]:
        ends = [sample.get(process, 0.0) for sample in (found.memory[0], middle, found.memory[-1])]
        table.add_row(f"memory, {process}", "  ".join(f"{value:.0f} MiB" for value in ends) + "  (begin, middle, end)")
    table.add_row("at rest", "  ".join(f"{name} {value:.0f}" for name, value in found.rest.items()))
    table.add_row("audit", found.audit)
    console.print(table)
