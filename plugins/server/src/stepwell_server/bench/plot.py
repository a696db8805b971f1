"""A report as one HTML page that needs nothing else: throughput against latency, and the table."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from stepwell.replay.style import LIGHT, STYLE
from stepwell_server.bench.results import Level, Report, Spread
from stepwell_server.bench.table import cells, columns, prices, remarks, title

LINES = tuple(f"var(--c{number})" for number in range(len(LIGHT)))
WIDTH = 860
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340.0, 64.0, 24.0, 12.0, 44.0
Point = tuple[float, float, str]
"""Tokens a second, milliseconds, and the level's name."""


def page(report: Report) -> str:
    """The page."""
    levels = report.levels
    parts = [
        f"<h1>{html.escape(title(report))}</h1>",
        "<h2>Time to the first token, and throughput</h2>",
        chart(_series(levels, "ttft_s")),
        "<h2>Time between arrivals of tokens, and throughput</h2>",
        chart(_series(levels, "itl_s")),
        "<h2>All levels</h2>",
        _table(columns(levels), cells(levels)),
        _table(*prices(levels)) if any(level.price for level in levels) else "",
        _list(remarks(report)),
        "<h2>How it was made</h2>",
        _list(_origin(report)),
    ]
    name = html.escape(title(report))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style>{''.join(parts)}"
        "</html>\n"
    )


def _origin(report: Report) -> list[str]:
    machine = report.machine
    return [
        " ".join(report.command),
        report.date,
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB; {'; '.join(machine.devices) or 'no GPU'}",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        *(f"{one.name} = {one.value}" for one in report.config),
        *report.target.summary,
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def _series(levels: Sequence[Level], name: str) -> dict[str, list[Point]]:
    spreads: list[tuple[Level, Spread]] = [(level, found) for level in levels if (found := getattr(level, name))]
    return {
        share: [
            (level.output_tokens_per_s, getattr(found, share) * 1e3, f"{level.value:g}") for level, found in spreads
        ]
        for share in ("p50", "p90", "p99")
    }


def chart(series: Mapping[str, Sequence[Point]]) -> str:
    """Lines of points over tokens a second, milliseconds on a logarithmic axis; the first line has the levels."""
    points = [point for line in series.values() for point in line]
    if not points:
        return "<p>Nothing was answered.</p>"
    most = max(x for x, _, _ in points) * 1.05 or 1.0
    low = 10 ** math.floor(math.log10(max(1e-3, min(y for _, y, _ in points))))
    high = max(low * 10, 10 ** math.ceil(math.log10(max(1e-3, max(y for _, y, _ in points)) * 1.0001)))

    def across(value: float) -> float:
        return LEFT + value / most * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        share = math.log10(max(value, low) / low) / math.log10(high / low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    parts = [_across_line(up(at), f"{at:g} ms") for at in _decades(low, high)]
    parts += [_text(across(at), HEIGHT - BOTTOM + 18, f"{at:,g}", "middle") for at in _round_steps(most)]
    parts.append(_text((WIDTH + LEFT) / 2, HEIGHT - 8, "output tokens a second; numbers are levels", "middle"))
    first = next(iter(series))
    for colour, (name, line) in zip(LINES, series.items(), strict=False):
        places = [(across(x), up(y), x, y, label) for x, y, label in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for at_x, at_y, x, y, label in places:
            tip = f"<title>{html.escape(name)} at {html.escape(label)}: {x:,.1f} tokens/s, {y:,.4g} ms</title>"
            parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3.5" fill="{colour}">{tip}</circle>')
            parts += [_text(at_x + 5, at_y + 16, label, "start")] if name == first else []
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>'
        for colour, name in zip(LINES, series, strict=False)
    )
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT:.0f}" width="{WIDTH}" role="img">{"".join(parts)}</svg>'
    return f'<p class="legend">{legend}</p>{drawing}'


def _across_line(y: float, name: str) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    return line + _text(LEFT - 6, y + 4, name, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _decades(low: float, high: float) -> list[float]:
    return [low * 10**at for at in range(round(math.log10(high / low)) + 1)]


def _round_steps(most: float) -> list[float]:
    """Some four to nine round numbers from 0 on."""
    rough = most / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * at for at in range(int(most / step) + 1)]
