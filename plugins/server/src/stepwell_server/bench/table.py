"""A report on the terminal: what matters most, within 80 columns. JSON has the rest."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from stepwell_server.bench.results import Level, Report, Spread

HEADS = {"concurrency": "at\nonce", "rate": "sent\nper s", "speed": "speed"}
NAMES = {"concurrency": "at once", "rate": "sent per s", "speed": "speed"}
COLUMNS = (
    *("req/s", "output\ntok/s", "total\ntok/s", "1st token\np50 ms", "p99", "between\np50 ms", "p99"),
    *("answer\np50 s", "cached", "failed"),
)
ROOMY = 100
"""Columns of a terminal from which on the table's own need not stand so close."""
SECONDS = ("GPU-s per M\noutput", "GPU-s per M\ntotal")
PRICES = ("price per M\noutput", "price per M\ntotal")


def show(report: Report, console: Console) -> None:
    """Print it."""
    console.print(title(report), highlight=False, markup=False, soft_wrap=True)
    if not report.levels:
        console.print("  nothing was measured")
    else:
        _print(columns(report.levels), cells(report.levels), console)
    if any(level.price for level in report.levels):
        _print(*prices(report.levels), console)
    for line in remarks(report):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _print(names: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    padding = (0, 1) if console.width >= ROOMY else 0
    table = Table(*names, box=box.SIMPLE_HEAD, padding=padding, show_edge=False, pad_edge=False)
    for column in table.columns:
        column.justify, column.vertical, column.overflow = "right", "bottom", "fold"
    for row in rows:
        table.add_row(*row)
    for part in ("", table, ""):
        console.print(part)


def title(report: Report) -> str:
    """What was measured, in a line."""
    target = report.target
    where = {"process": "in process", "served": "over HTTP"}.get(target.kind, f"at {target.url}")
    return f"{target.model} {where}: {report.workload}, as {target.prompts_as}"


def columns(levels: Sequence[Level]) -> list[str]:
    """Heads of the table."""
    return [HEADS[levels[0].kind] if levels else "level", *COLUMNS]


def cells(levels: Sequence[Level]) -> list[list[str]]:
    """The rows, a text for each head."""
    return [
        [
            name(level),
            number(level.requests_per_s),
            number(level.output_tokens_per_s),
            number(level.total_tokens_per_s),
            *_middle_and_tail(level.ttft_s),
            *_middle_and_tail(level.itl_s),
            number(level.e2e_s.p50 if level.e2e_s else None),
            _share(level.cached_tokens, level.prompt_tokens),
            str(level.failed),
        ]
        for level in levels
    ]


def prices(levels: Sequence[Level]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of what a million tokens take."""
    found = [(level, level.price) for level in levels if level.price is not None]
    priced = any(price.per_million_output is not None for _, price in found)
    heads = [columns(levels)[0], *SECONDS, *(PRICES if priced else ())]
    rows = []
    for level, price in found:
        figures = [price.gpu_seconds_per_million_output, price.gpu_seconds_per_million_total]
        figures += [price.per_million_output, price.per_million_total] if priced else []
        rows.append([name(level), *map(number, figures)])
    return heads, rows


def name(level: Level) -> str:
    """A level's value, with a mark where its figures are not as good as the others."""
    return f"{level.value:g}" + ("*" if level.cut or not level.client.kept_up else "")


def number(value: float | None) -> str:
    """Three digits, or all of those before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if value else "0"


def _middle_and_tail(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (number(spread.p50 * 1e3), number(spread.p99 * 1e3))


def _share(part: int | None, whole: int | None) -> str:
    return "-" if part is None or not whole else f"{part / whole:.0%}"


def remarks(report: Report) -> list[str]:
    """What a reader of the table has to know besides."""
    lines = list(report.notes)
    for level in report.levels:
        where = f"{NAMES[level.kind]} {level.value:g}"
        if level.cut:
            lines.append(f"{where}: broken off; the figures are of what had ended by then")
        lines += [f"{where}: {times} failed: {reason}" for reason, times in level.failures.items()]
        lines += [f"{where}: the client did not keep up: {doubt}" for doubt in level.client.doubts]
        if level.tokens_per_arrival > 1.5:
            lines.append(f"{where}: {level.tokens_per_arrival:.2f} tokens came at once, on average")
    return lines
