"""One self-contained HTML page of a replay and its variants: tables, and plots as inline SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.replay.compare import Outcome
from stepwell.replay.result import Result

COLOURS = {"device": "#2f6f4f", "host": "#7fb069", "storage": "#e6aa68", "computed": "#c8c8c8"}
LINES = ("#2f6f4f", "#ca3c25", "#3a6ea5", "#8e5572", "#b8860b", "#444444", "#1b998b", "#5f0f40")
WIDTH, ROW, LEFT = 860, 26, 210

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
h2 { margin-top: 2.2rem }
svg { max-width: 100% }
text { font: 12px system-ui, sans-serif }
.legend span { display: inline-block; margin-right: 1.2rem }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
"""


def page(title: str, results: Mapping[str, Result], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The page: `rows` is the table that the terminal shows, name and one text a variant."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *results))
    body = "".join(
        f"<tr><td>{html.escape(name)}</td>{''.join(f'<td>{html.escape(text)}</td>' for text in texts)}</tr>"
        for name, texts in rows
    )
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        "<h2>Where prompt tokens came from</h2>",
        _legend(COLOURS),
        _stacked({name: _origins(result) for name, result in results.items()}),
    ]
    timed = {name: result for name, result in results.items() if len(result.ttft_s)}
    if timed:
        sections += [
            "<h2>GPU-seconds a million tokens</h2>",
            _bars({name: result.gpu_seconds_per_million for name, result in timed.items()}),
            "<h2>Bytes moved, GB</h2>",
            _bars({name: sum(result.bytes_moved.values()) / 1e9 for name, result in timed.items()}),
            "<h2>Time to the first token: share of requests at or under</h2>",
            _legend(dict(zip(timed, LINES, strict=False))),
            _curves({name: result.ttft_s for name, result in timed.items()}),
            "<h2>Latency of the whole answer</h2>",
            _curves({name: result.latency_s for name, result in timed.items()}),
        ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style>{''.join(sections)}</html>"
    )


def _origins(result: Result) -> dict[str, float]:
    hits = result.all
    computed = hits.input_tokens - hits.total
    return {"device": hits.device, "host": hits.host, "storage": hits.storage, "computed": computed}


def _legend(colours: Mapping[str, str]) -> str:
    spans = (f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in colours.items())
    return f'<p class="legend">{"".join(spans)}</p>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">{"".join(parts)}</svg>'


def _stacked(bars: Mapping[str, Mapping[str, float]]) -> str:
    parts = []
    for row, (name, shares) in enumerate(bars.items()):
        whole, x = sum(shares.values()) or 1.0, float(LEFT)
        parts.append(_label(name, row))
        for kind, value in shares.items():
            width = value / whole * (WIDTH - LEFT - 10)
            tip = f"{html.escape(kind)}: {value:,.0f} ({value / whole:.1%})"
            parts.append(
                f'<rect x="{x:.1f}" y="{row * ROW + 4}" width="{width:.1f}" height="{ROW - 8}" '
                f'fill="{COLOURS[kind]}"><title>{tip}</title></rect>'
            )
            x += width
    return _svg(len(bars) * ROW + 4, parts)


def _bars(values: Mapping[str, float]) -> str:
    top, parts = max(values.values(), default=1.0) or 1.0, []
    for row, (name, value) in enumerate(values.items()):
        width = value / top * (WIDTH - LEFT - 110)
        parts.append(_label(name, row))
        parts.append(
            f'<rect x="{LEFT}" y="{row * ROW + 4}" width="{width:.1f}" height="{ROW - 8}" fill="{COLOURS["device"]}"/>'
        )
        parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{row * ROW + 17}">{value:,.2f}</text>')
    return _svg(len(values) * ROW + 4, parts)


def _label(name: str, row: int) -> str:
    return f'<text x="{LEFT - 8}" y="{row * ROW + 17}" text-anchor="end">{html.escape(name)}</text>'


def _curves(series: Mapping[str, Sequence[float]]) -> str:
    """Cumulative distributions over a logarithmic axis of seconds."""
    height, low, high = 300.0, _floor_decade(series), _ceil_decade(series)
    left, right, bottom = 50.0, WIDTH - 20.0, height - 30.0

    def x(value: float) -> float:
        return left + math.log10(max(value, low) / low) / math.log10(high / low) * (right - left)

    def y(share: float) -> float:
        return bottom - share * (bottom - 10)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    decade = low
    while decade <= high * 1.001:
        parts.append(f'<text x="{x(decade):.1f}" y="{height - 10}" text-anchor="middle">{decade:g} s</text>')
        decade *= 10
    for colour, values in zip(LINES * 4, series.values(), strict=False):
        shares = np.linspace(0.0, 1.0, 201)
        points = " ".join(
            f"{x(float(v)):.1f},{y(float(s)):.1f}" for v, s in zip(np.quantile(values, shares), shares, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _svg(height, parts)


def _floor_decade(series: Mapping[str, Sequence[float]]) -> float:
    least = min((float(np.quantile(values, 0.001)) for values in series.values()), default=0.001)
    return float(10 ** np.floor(np.log10(max(least, 1e-4))))


def _ceil_decade(series: Mapping[str, Sequence[float]]) -> float:
    most = max((float(np.max(values)) for values in series.values()), default=1.0)
    return float(10 ** np.ceil(np.log10(max(most, 1e-3) * 1.0001)))


def compared_page(title: str, outcomes: Sequence[Outcome], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The page of a comparison."""
    return page(title, {combination.name: result for combination, result in outcomes}, rows)
