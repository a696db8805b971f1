"""One self-contained HTML page of one replay or several: what decides between them, distributions, and all numbers.

It fetches nothing and runs nothing: plots are SVG, tooltips are titles, and what is not pointed at is dimmed by style
alone. It is well-formed XML as well, so that other tools can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from stepwell.replay.axes import exact, seconds
from stepwell.replay.compare import Outcome, Values, baseline, ratios, short, swept_values
from stepwell.replay.figures import (
    COLOURS,
    TIERS,
    Line,
    Series,
    escape,
    legend,
    over,
    stacked,
    strips,
    tails,
)
from stepwell.replay.result import Result, percentiles
from stepwell.replay.style import STYLE

Rows = Sequence[tuple[str, Sequence[str]]]
EVEN = 0.02
"""Ratios nearer to 1 than this are neither better nor worse."""
FEW = 4
"""Combinations whose table of all numbers is open at once."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One replay as the page shows it."""

    name: str
    result: Result
    number: int = 0
    """Says its colour: the same for a policy wherever it is."""
    facet: Values = ()
    """Swept values that it has in common with what it is drawn together with."""
    base: bool = True
    ratios: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of numbers; `ratio` names what of them is held against the baseline."""

    head: str
    value: Callable[[Result], float]
    text: Callable[[float], str]
    ratio: str = ""
    more_is_better: bool = False


def page(title: str, results: Mapping[str, Result], rows: Rows) -> str:
    """The page of one replay, or of several variants; `rows` is the terminal's table: name, and one text a variant."""
    shown = [Shown(name, result, number) for number, (name, result) in enumerate(results.items())]
    return _page(title, "", shown, rows, "")


def compared_page(title: str, outcomes: Sequence[Outcome], rows: Rows) -> str:
    """The page of a comparison."""
    first = outcomes[0][0]
    lines = list(dict.fromkeys(one.policy for one, _ in outcomes)) if first.policy else []
    shown = []
    for number, (combination, result) in enumerate(outcomes):
        against, base = baseline(outcomes, combination)
        shown.append(
            Shown(
                combination.name,
                result,
                lines.index(combination.policy) if lines else number,
                combination.swept if lines else (),
                against == combination,
                ratios(result, base),
            )
        )
    told = f"{first.policy or first.name} is the baseline: ratios are to it"
    if lines and swept_values(outcomes):
        told += " at the same swept values"
    return _page(title, f"{told}; below 1 is less.", shown, rows, _sweeps(outcomes))


def _page(title: str, told: str, shown: Sequence[Shown], rows: Rows, sweeps: str) -> str:
    timed = [one for one in shown if len(one.result.ttft_s)]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_setup(shown))}</p>",
        f"<p>{escape(told)}</p>" if told else "",
        *(f'<p class="worse">{escape(f"{one.name}: {one.result.blame}")}</p>' for one in shown if one.result.blame),
        _metrics(shown, DECIDE if timed else DECIDE[:1]) if len(shown) > 1 else "",
        sweeps,
        *(_distributions(timed) if timed else ()),
        "<h2>Where prompt tokens came from</h2>",
        _tiers(),
        stacked({one.name: _origins(one.result) for one in shown}),
    ]
    if timed and len(shown) > 1:
        sections += ["<h2>Work</h2>", _metrics(shown, _work(shown))]
    sections.append(_everything(shown, rows))
    head = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>'
    head += f"<title>{escape(title)}</title><style>{STYLE}{_dimming(shown)}</style>"
    body = "".join(sections)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _setup(shown: Sequence[Shown]) -> str:
    """What all have in common."""
    setups = [one.result.setup for one in shown]
    told = [f"{shown[0].result.requests:,} requests"]
    for key in dict.fromkeys(key for setup in setups for key in setup):
        value = _common(setups, key)
        if "." in key and value is not None:
            told.append(f"{key}={value}")
        elif "." not in key and (value is False or value):  # a tier of size 0 is none
            told.append(f"{key.replace('_', ' ')} {f'{value:.12g}' if isinstance(value, float) else value}")
    return ", ".join(told) + "."


def _common(setups: Sequence[Mapping[str, object]], key: str) -> object:
    """The value that all have. A policy's setting, written `role.key`, is for those alone that use this policy."""
    role, dot, _ = key.partition(".")
    using = {setup.get(role) for setup in setups if key in setup}
    values = [setup.get(key) for setup in setups if not dot or setup.get(role) in using]
    return values[0] if all(value == values[0] for value in values) else None


# --- tables ---


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _time(value: float) -> str:
    return f"{exact(value)} s"


DECIDE = (
    Metric("hits", lambda r: r.all.share, _share, "hit_share", True),
    Metric("TTFT mean", lambda r: percentiles(r.ttft_s).get("mean", 0.0), _time, "ttft_mean"),
    Metric("TTFT p99", lambda r: percentiles(r.ttft_s).get("p99", 0.0), _time, "ttft_p99"),
    Metric("latency mean", lambda r: percentiles(r.latency_s).get("mean", 0.0), _time, "latency_mean"),
    Metric("latency p99", lambda r: percentiles(r.latency_s).get("p99", 0.0), _time, "latency_p99"),
    Metric("worst wait", lambda r: r.worst_wait_s, _time, "worst_wait"),
    Metric("worst passes", lambda r: r.passes_worst, _number),
    Metric("output tokens a second", lambda r: r.throughput["output_tokens_s"], _number, "output_tokens_s", True),
)
WORK = (
    Metric("requests a second", lambda r: r.throughput["requests_s"], lambda value: f"{value:,.2f}"),
    Metric("GPU-seconds a million tokens", lambda r: r.gpu_seconds_per_million, lambda value: f"{value:,.2f}"),
    Metric("retractions", lambda r: r.retractions, _number),
    Metric("tokens computed again", lambda r: r.recomputed_tokens, _number),
    Metric("padding", lambda r: r.padding_share, _share),
    Metric("spread of chunks", lambda r: r.chunk_spread, lambda value: f"{value:.2f}"),
    Metric("GB moved", lambda r: sum(r.bytes_moved.values()) / 1e9, lambda value: f"{value:,.1f}"),
    Metric("experts a step", lambda r: r.experts_per_step, lambda value: f"{value:,.1f}"),
    Metric("policy faults", lambda r: r.policy_faults, _number),
)


def _work(shown: Sequence[Shown]) -> list[Metric]:
    """Columns of the work done; what this replay has none of is left out."""
    last = [metric for metric in WORK[6:] if any(metric.value(one.result) for one in shown)]
    return [*WORK[:6], *last]


def _metrics(shown: Sequence[Shown], metrics: Sequence[Metric]) -> str:
    """A row each; under a number a bar that says how it stands to the largest, and beside it its ratio."""
    head = "".join(f"<th>{escape(metric.head)}</th>" for metric in metrics)
    most = [max((metric.value(one.result) for one in shown), default=0.0) or 1.0 for metric in metrics]
    body, parted_at = "", _parted(shown)
    for at, one in enumerate(shown):
        parted = ' class="parted"' if at in parted_at else ""
        cells = "".join(_cell(one, metric, top) for metric, top in zip(metrics, most, strict=True))
        swatch = f'<i style="background:var(--c{one.number % COLOURS})"></i>'
        body += f'<tr{parted}><th scope="row">{swatch}{escape(one.name)}</th>{cells}</tr>'
    return f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _parted(shown: Sequence[Shown]) -> set[int]:
    """Rows at which another facet begins."""
    return {at for at in range(1, len(shown)) if shown[at].facet != shown[at - 1].facet}


def _cell(one: Shown, metric: Metric, most: float) -> str:
    value = metric.value(one.result)
    ratio = one.ratios.get(metric.ratio) if metric.ratio and not one.base else None
    told = f' <small class="{_judged(ratio, metric.more_is_better)}">{ratio:.2f}x</small>' if ratio is not None else ""
    return f'<td class="bar" style="--w:{value / most:.1%}">{metric.text(value)}{told}</td>'


def _judged(ratio: float, more_is_better: bool) -> str:
    if abs(ratio - 1) < EVEN:
        return "even"
    return "better" if (ratio > 1) == more_is_better else "worse"


def _everything(shown: Sequence[Shown], rows: Rows) -> str:
    head = "".join(f"<th>{escape(one.name)}</th>" for one in shown)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(text)}</td>" for text in texts)}</tr>'
        for name, texts in rows
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    opened = ' open="open"' if len(shown) <= FEW else ""
    return f'<details{opened}><summary>All numbers</summary><div class="wide">{table}</div></details>'


# --- plots ---


def _origins(result: Result) -> dict[str, float]:
    hits = result.all
    amounts = (hits.device, hits.host, hits.storage, hits.input_tokens - hits.total)
    return dict(zip(TIERS, amounts, strict=True))


def _tiers() -> str:
    spans = (f'<span><i class="{tier}"></i>{tier}</span>' for tier in TIERS)
    return f'<p class="legend">{"".join(spans)}</p>'


def _distributions(timed: Sequence[Shown]) -> list[str]:
    """Strips of all, then for those that belong together how many requests take longer than so long."""
    strip_rows = [
        (one.name, one.number, (one.result.ttft_s, one.result.latency_s, one.result.waits_s)) for one in timed
    ]
    parts = [
        "<h2>How long requests take and wait</h2>",
        "<p>From the 5th to the 99th percentile, thick for the middle half; a bar at the median, a dot at the mean, "
        "a ring at the longest. Waiting ends where a request is first admitted: its worst is what an order costs.</p>",
        strips(("time to the first token", "latency of the whole answer", "waiting"), strip_rows, _parted(timed)),
        "<h2>Share of requests that take longer</h2>",
        "<p>At 1% the 99th percentile can be read. Point at a name or a line to see it alone.</p>",
    ]
    facets = dict.fromkeys(one.facet for one in timed)
    for facet in [one for one in facets if not any(set(one) < set(other) for other in facets)]:
        group = [one for one in timed if set(one.facet) <= set(facet)]  # a policy may lack what is swept
        plots = [
            tails(title, [Series(one.name, one.number, getattr(one.result, field)) for one in group])
            for title, field in (("time to the first token", "ttft_s"), ("latency of the whole answer", "latency_s"))
        ]
        heading = _heading(facet)
        names = legend({one.name: one.number for one in group})
        parts.append(f'<figure>{heading}{names}<div class="pair">{"".join(plots)}</div></figure>')
    return parts


def _sweeps(outcomes: Sequence[Outcome]) -> str:
    """Lines over the swept setting that has most values; a row of plots for each choice of the others."""
    values = swept_values(outcomes)
    if not values:
        return ""
    key = max(values, key=lambda one: len(values[one]))
    others = {other: found for other, found in values.items() if other != key}
    parts = [f"<h2>Over {escape(key)}</h2>"]
    for chosen in product(*([(other, value) for value in found] for other, found in others.items())):
        parts.append(_sweep(outcomes, key, values[key], chosen))
    return "".join(parts)


def _sweep(outcomes: Sequence[Outcome], key: str, places: Sequence[str], chosen: Sequence[tuple[str, str]]) -> str:
    policies = list(dict.fromkeys(one.policy for one, _ in outcomes))
    names = [str(policy) if policy else short(key) for policy in policies]
    found: list[list[Result | None]] = []
    for policy in policies:
        mine = [(set(one.swept), result) for one, result in outcomes if one.policy == policy]
        found.append([next((r for swept, r in mine if swept <= {(key, place), *chosen}), None) for place in places])
    plots = [
        over(
            metric.head,
            places,
            [
                Line(name, number, [None if one is None else metric.value(one) for one in line])
                for number, (name, line) in enumerate(zip(names, found, strict=True))
            ],
            _share if metric.text is _share else seconds,
            log=metric.text is not _share,
        )
        for metric in (DECIDE[1], DECIDE[2], DECIDE[0])
        if metric.text is _share or any(len(one.ttft_s) for line in found for one in line if one)
    ]
    heading = _heading(chosen)
    names_shown = legend({name: number for number, name in enumerate(names)}) if len(names) > 1 else ""
    return f'<figure>{heading}{names_shown}<div class="three">{"".join(plots)}</div></figure>'


def _heading(values: Sequence[tuple[str, str]]) -> str:
    return f"<h3>{escape(', '.join(f'{key} = {value}' for key, value in values))}</h3>" if values else ""


def _dimming(shown: Sequence[Shown]) -> str:
    """Pointing at one series dims the others in its figure."""
    numbers = sorted({one.number for one in shown})
    rules = (f"figure:has(.s{n}:hover) .s:not(.s{n})" for n in numbers)
    return f"{','.join(rules)}{{opacity:.12}}"
