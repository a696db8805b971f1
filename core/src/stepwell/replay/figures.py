"""Plots as SVG that any browser shows by itself: colours come from the page's style, tooltips are titles."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.replay.axes import Axis, Linear, Log, seconds, shares, times

COLOURS = 10
"""The page's style has so many; then they begin again, dashed."""
DASHES = ("", "7 3", "2 3")
WIDE, HALF, ROW = 1060.0, 520.0, 22.0
LONGEST = 48
"""Letters of a name that are shown beside a row."""
TAIL = 1e-3
"""The least share of requests that a distribution shows."""
MARKS = (50.0, 90.0, 99.0, 99.9)
TIERS = ("device", "host", "storage", "computed")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    number: int
    """Says its colour."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Line:
    """Points over a swept value; None where there is none."""

    name: str
    number: int
    values: Sequence[float | None]


def escape(text: str) -> str:
    """Text as it may stand anywhere in a page."""
    return html.escape(text, quote=True)


def legend(names: Mapping[str, int]) -> str:
    """Names beside their colours; hovering over one dims the others."""
    spans = (
        f'<span class="k s{number}"><svg width="26" height="10"><path d="M1 5H25" {_stroke(number)}/></svg>'
        f"{escape(name)}</span>"
        for name, number in names.items()
    )
    return f'<p class="legend">{"".join(spans)}</p>'


def tails(title: str, series: Sequence[Series]) -> str:
    """How many requests take longer than so long; both axes are logarithmic, so that the last percents can be read."""
    bottom, left = 250.0, 52.0
    ends = [bound for one in series for bound in _quantiles(one.values, (5.0, 100.0))]
    x, y = times(ends, left, HALF - 30), Log(TAIL, 1.0, bottom, 28.0)
    parts = [_title(title), *_grid_x(x, 28.0, bottom, seconds), *_grid_y(y, left, HALF - 30, _percent)]
    for one in series:
        beyond = np.geomspace(1.0, max(TAIL, 1 / len(one.values)), 160)
        values = _quantiles(one.values, tuple(100 * (1 - beyond)))
        points = " ".join(f"{x.at(v):.1f},{y.at(float(b)):.1f}" for v, b in zip(values, beyond, strict=True))
        dots = [
            _dot(x.at(value), y.at(1 - mark / 100), one, f"p{mark:g} {_time(value)}")
            for mark, value in zip(MARKS, _quantiles(one.values, MARKS), strict=True)
            if 1 - mark / 100 >= 1 / len(one.values)
        ]
        parts.append(_series(one.number, f'<polyline points="{points}" {_stroke(one.number)}/>', *dots))
    return _svg(HALF, bottom + 26, parts, title)


def strips(
    heads: Sequence[str], rows: Sequence[tuple[str, int, Sequence[Sequence[float]]]], parted: Collection[int] = ()
) -> str:
    """A row each, in panels side by side: most requests' range, the middle half, the median, the mean and the worst.

    Above the rows in `parted` a line begins another group.
    """
    left = _label_width([name for name, _, _ in rows])
    each, bottom = (WIDE - left) / len(heads), 30 + len(rows) * ROW
    parts = [_row_label(name, left, 30 + at * ROW) for at, (name, _, _) in enumerate(rows)]
    parts += [f'<path class="grid" d="M0 {30 + at * ROW:.1f}H{WIDE:.1f}"/>' for at in parted]
    for panel, head in enumerate(heads):
        start, end = left + panel * each + 22, left + (panel + 1) * each - 22
        columns = [values[panel] for _, _, values in rows]
        ends = [bound for values in columns if len(values) for bound in _quantiles(values, (5.0, 100.0))]
        x = times(ends, start, end, most=5)
        parts += [
            f'<text class="head" x="{start - 12:.1f}" y="14">{escape(head)}</text>',
            *_grid_x(x, 22, bottom, seconds),
        ]
        for at, (name, number, values) in enumerate(rows):
            if len(values[panel]):
                parts.append(_strip(name, number, values[panel], x, 30 + at * ROW + ROW / 2))
    return _svg(WIDE, bottom + 26, parts, ", ".join(heads))


def stacked(bars: Mapping[str, Mapping[str, float]]) -> str:
    """A bar each, in parts that make up the whole."""
    left, parts = _label_width(list(bars)), []
    for at, (name, amounts) in enumerate(bars.items()):
        whole, x = sum(amounts.values()) or 1.0, left
        parts.append(_row_label(name, left, at * ROW))
        for kind, value in amounts.items():
            width = value / whole * (WIDE - left - 10)
            tip = f"{name}: {kind} {value:,.0f} ({value / whole:.1%})"
            parts.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{at * ROW + 3:.1f}" width="{width:.1f}" height="{ROW - 6}">'
                f"<title>{escape(tip)}</title></rect>"
            )
            x += width
    return _svg(WIDE, len(bars) * ROW + 4, parts, "where prompt tokens came from")


def over(title: str, places: Sequence[str], lines: Sequence[Line], text: Callable[[float], str], *, log: bool) -> str:
    """A number over the values of a swept setting."""
    left, bottom, width = 56.0, 210.0, WIDE / 3 - 8
    x = _places(places, left + 14, width - 22)
    known = [value for line in lines for value in line.values if value is not None]
    y: Axis = times(known, bottom, 28.0) if log else shares(known, bottom, 28.0)
    parts = [_title(title), *_grid_y(y, left, width - 8, text)]
    free = -1e9
    for place, at in zip(places, x, strict=True):
        if at - free > 3.5 * (len(place) + 3):
            parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(place)}</text>')
            free = at + 3.5 * len(place)
    for line in lines:
        there = [(at, y.at(v), v, p) for at, v, p in zip(x, line.values, places, strict=True) if v is not None]
        points = " ".join(f"{at:.1f},{height:.1f}" for at, height, _, _ in there)
        dots = [_dot(at, height, line, f"at {place}: {text(v)}", "dot shown") for at, height, v, place in there]
        parts.append(_series(line.number, f'<polyline points="{points}" {_stroke(line.number)}/>', *dots))
    return _svg(width, bottom + 26, parts, title)


# --- pieces ---


def _places(texts: Sequence[str], start: float, end: float) -> list[float]:
    """Swept values along an axis: numbers where they belong, by factors if they span some; names in equal steps."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = [float(at) for at in range(len(texts))]
    if len(numbers) == 1:
        return [(start + end) / 2]
    axis: Axis = Linear(min(numbers), max(numbers), start, end)
    if min(numbers) > 0 and max(numbers) >= 4 * min(numbers):
        axis = Log(min(numbers), max(numbers), start, end)
    return [axis.at(number) for number in numbers]


def _strip(name: str, number: int, values: Sequence[float], x: Axis, y: float) -> str:
    low, quarter, middle, three, high, worst = _quantiles(values, (5.0, 25.0, 50.0, 75.0, 99.0, 100.0))
    mean = float(np.mean(values))
    tip = f"{name}: p5 {_time(low)}, median {_time(middle)}, mean {_time(mean)}, p99 {_time(high)}, max {_time(worst)}"
    return (
        f'<g class="s s{number}"><title>{escape(tip)}</title>'
        f'<rect class="catch" x="{x.at(low) - 4:.1f}" y="{y - 10:.1f}" '
        f'width="{x.at(worst) - x.at(low) + 8:.1f}" height="20"/>'
        f'<path d="M{x.at(low):.1f} {y:.1f}H{x.at(high):.1f}" {_stroke(number, 1.5)}/>'
        f'<path d="M{x.at(quarter):.1f} {y:.1f}H{x.at(three):.1f}" class="thick" {_stroke(number, 8)}/>'
        f'<path d="M{x.at(middle):.1f} {y - 7:.1f}v14" class="median"/>'
        f'<circle class="mean" cx="{x.at(mean):.1f}" cy="{y:.1f}" r="3.5"/>'
        f'<circle class="worst" cx="{x.at(worst):.1f}" cy="{y:.1f}" r="2" stroke="var(--c{number % COLOURS})"/></g>'
    )


def _series(number: int, *parts: str) -> str:
    return f'<g class="s s{number}">{"".join(parts)}</g>'


def _dot(x: float, y: float, of: Series | Line, text: str, kind: str = "dot") -> str:
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--c{of.number % COLOURS})">'
        f"<title>{escape(f'{of.name}: {text}')}</title></circle>"
    )


def _stroke(number: int, width: float = 2) -> str:
    dash = DASHES[number // COLOURS % len(DASHES)] if width == 2 else ""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="var(--c{number % COLOURS})" stroke-width="{width:g}"{dashed}'


def _grid_x(axis: Axis, top: float, bottom: float, text: Callable[[float], str]) -> list[str]:
    return [
        f'<path class="grid" d="M{axis.at(tick):.1f} {top:.1f}V{bottom:.1f}"/>'
        f'<text x="{axis.at(tick):.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{text(tick)}</text>'
        for tick in axis.ticks()
    ]


def _grid_y(axis: Axis, left: float, right: float, text: Callable[[float], str]) -> list[str]:
    return [
        f'<path class="grid" d="M{left:.1f} {axis.at(tick):.1f}H{right:.1f}"/>'
        f'<text x="{left - 6:.1f}" y="{axis.at(tick) + 4:.1f}" text-anchor="end">{text(tick)}</text>'
        for tick in axis.ticks()
    ]


def _title(text: str) -> str:
    return f'<text class="head" x="2" y="14">{escape(text)}</text>'


def _label_width(names: Sequence[str]) -> float:
    return 16 + 7.3 * min(LONGEST, max((len(name) for name in names), default=0))


def _row_label(name: str, left: float, top: float) -> str:
    shown = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return (
        f'<text x="{left - 8:.1f}" y="{top + ROW / 2 + 4:.1f}" text-anchor="end">{escape(shown)}'
        f"<title>{escape(name)}</title></text>"
    )


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _quantiles(values: Sequence[float], at: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(np.asarray(values), at)]


def _percent(value: float) -> str:
    return f"{value:.0%}" if value >= 0.01 else f"{value:.1%}"


def _time(value: float) -> str:
    return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.2f} s"
