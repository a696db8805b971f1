"""A replay's results as tables: settings as columns where they fit, else as rows with the numbers that decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from stepwell.replay.axes import exact
from stepwell.replay.compare import Outcome, baseline, ratios, short, swept_values
from stepwell.replay.result import Result, percentiles

WIDEST = 10_000
"""Columns of a terminal that cuts nothing."""
NAME = 24
"""Letters of a name in one line."""

Line = tuple[str, list[str]]
Row = Callable[[str, Callable[[Result], str]], Line]


def show(name: str, results: Mapping[str, Result]) -> None:
    """The table on the terminal."""
    Console().print(_columns(f"Replay of {escape(name)}", list(results), table_rows(results)))


def show_compared(name: str, outcomes: Sequence[Outcome]) -> None:
    """The table of a comparison: a column each where the terminal is wide enough, else a row each."""
    console, title = Console(), f"Replay of {escape(name)}"
    names = [combination.name for combination, _ in outcomes]
    table = _columns(title, names, compared_rows(outcomes))
    settings, numbers = _settings(outcomes), brief(outcomes)
    if not _fits(console, table):
        table = _rows(title, settings + numbers)
    left = len(numbers)
    while not _fits(console, table) and left > 1:
        left -= 1
        table = _rows(title, settings + numbers[:left])
        table.caption = f"{len(numbers) - left} columns more fit into a wider terminal; --json and --html have all"
    console.print(table)


def warn(results: Iterable[tuple[str, Result]]) -> None:
    """A sentence on stderr for each replay in which a policy was broken: its numbers are those of the default, too."""
    for name, result in results:
        if result.blame:
            click.echo(f"Warning: {name}: {result.blame}", err=True)


def _fits(console: Console, table: Table) -> bool:
    return Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum <= console.width


def _columns(title: str, names: Sequence[str], lines: Sequence[Line]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for name in names:
        table.add_column(escape(folded(name)), justify="right")
    for label, texts in lines:
        table.add_row(escape(label), *texts)
    return table


def _rows(title: str, lines: Sequence[Line]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for label, _ in lines:
        table.add_column(label, justify="left" if label == "policy" else "right")
    for texts in zip(*(texts for _, texts in lines), strict=True):
        table.add_row(*map(escape, texts))
    return table


def folded(name: str) -> str:
    """A name in lines that leave room for numbers: broken before its settings, and within one that is too long."""
    lines = [""]
    for part in re.split("(?=[: ])", name):
        for piece in (part[at : at + NAME] for at in range(0, len(part), NAME)):
            if len(lines[-1]) + len(piece) <= NAME:
                lines[-1] += piece
            else:
                lines.append(piece.lstrip())
    return "\n".join(lines)


def _settings(outcomes: Sequence[Outcome]) -> list[Line]:
    """What tells combinations apart; long names may be broken at their underscores."""
    lines = [("policy", [folded(str(one.policy)) for one, _ in outcomes])] if outcomes[0][0].policy else []
    for key in swept_values(outcomes):
        lines.append((short(key).replace("_", "\n"), [folded(dict(one.swept).get(key, "")) for one, _ in outcomes]))
    return lines


def brief(outcomes: Sequence[Outcome]) -> list[Line]:
    """The numbers that decide, the most telling first; times with their ratio to the baseline's."""

    def line(label: str, text: Callable[[Result], str]) -> Line:
        return label, [text(result) for _, result in outcomes]

    hits = line("hits", lambda r: f"{r.all.share:.1%}")
    if not any(len(result.ttft_s) for _, result in outcomes):
        return [hits]
    broken = [line("policy\nfaults", lambda r: f"{r.policy_faults:,}")]
    lines = [
        hits,
        *(broken if any(result.policy_faults for _, result in outcomes) else ()),
        ("TTFT\nmean s", _against(outcomes, "ttft_mean", lambda r: percentiles(r.ttft_s).get("mean", 0.0))),
        ("TTFT\np99 s", _against(outcomes, "ttft_p99", lambda r: percentiles(r.ttft_s).get("p99", 0.0))),
        line("wait\nmax s", lambda r: exact(r.worst_wait_s)),
        line("tokens\na second", lambda r: f"{r.throughput['output_tokens_s']:,.0f}"),
        line("passes\nmax", lambda r: f"{r.passes_worst:,}"),
        line("retrac-\ntions", lambda r: f"{r.retractions:,}"),
        line("padding", lambda r: f"{r.padding_share:.0%}"),
    ]
    if any(result.experts_per_step for _, result in outcomes):
        lines.append(line("experts\na step", lambda r: f"{r.experts_per_step:,.1f}"))
    return lines


def _against(outcomes: Sequence[Outcome], ratio: str, value: Callable[[Result], float]) -> list[str]:
    texts = []
    for combination, result in outcomes:
        against, base = baseline(outcomes, combination)
        over = ratios(result, base)[ratio] if against != combination else None
        texts.append(exact(value(result)) + (f" {over:5.2f}x" if over is not None else " " * 7))
    return texts


def compared_rows(outcomes: Sequence[Outcome]) -> list[Line]:
    """Everything that a single replay shows, and ratios to the baseline."""
    rows = table_rows({combination.name: result for combination, result in outcomes})
    named = baseline(outcomes, outcomes[0][0])[0]
    label = f"to {named.policy or named.name}: "
    every = [ratios(result, baseline(outcomes, combination)[1]) for combination, result in outcomes]
    wanted = {"TTFT mean": "ttft_mean", "TTFT p99": "ttft_p99", "latency mean": "latency_mean", "hits": "hit_share"}
    wanted["output tokens a second"] = "output_tokens_s"
    found = {what: [one[key] for one in every] for what, key in wanted.items()}
    return (
        rows[:-1]
        + [
            (label + what, ["" if one is None else f"{one:.2f}x" for one in values])
            for what, values in found.items()
            if any(one is not None for one in values)
        ]
        + rows[-1:]
    )


def table_rows(results: Mapping[str, Result]) -> list[Line]:
    """Label and one text a variant, for the terminal and the page."""

    def row(label: str, text: Callable[[Result], str]) -> Line:
        return label, [text(result) for result in results.values()]

    rows = [row("requests", lambda r: f"{r.requests:,}")]
    if any(result.finished or result.refused for result in results.values()):
        rows.append(row("finished, refused", lambda r: f"{r.finished:,}, {r.refused:,}"))
    rows += [
        row("input tokens", lambda r: f"{r.all.input_tokens:,}"),
        row("hit tokens", lambda r: f"{r.all.total:,} ({r.all.share:.1%})"),
        row("  device", lambda r: _of(r.all.device, r.all.input_tokens)),
        row("  host", lambda r: _of(r.all.host, r.all.input_tokens)),
        row("  storage", lambda r: _of(r.all.storage, r.all.input_tokens)),
        row("hit tokens, last half", lambda r: f"{r.last_half.total:,} ({r.last_half.share:.1%})"),
    ]
    if any(result.gpu_seconds for result in results.values()):
        rows += _timed_rows(row, results)
    if any(result.restorable for result in results.values()):
        rows += _model_rows(row, results)
    if any(result.price_per_hour is not None for result in results.values()):
        rows.append(row("money a million tokens", lambda r: f"{r.money_per_million or 0:.4f}"))
    if any(result.policy_faults for result in results.values()):
        rows.append(row("policy faults", lambda r: f"{r.policy_faults:,}"))
    return [*rows, row("took", lambda r: f"{r.wall_s:.2f} s")]


def _timed_rows(row: Row, results: Mapping[str, Result]) -> list[Line]:
    rows = [
        row("GB saved, loaded", lambda r: _gb(r, "save", "load")),
        row("GB stored, fetched", lambda r: _gb(r, "store", "fetch")),
        row("GB moved, if all were moved", lambda r: _pair(r, "moved", "moved_if_all_saved_and_loaded")),
        row("GB computed, without cache", lambda r: _pair(r, "recomputed", "recomputed_without_cache")),
        row("TTFT mean, p50, p99", lambda r: _times(r.ttft_s)),
        row("latency mean, p50, p99", lambda r: _times(r.latency_s)),
        row("waiting mean, p50, p99", lambda r: _times(r.waits_s)),
        row("waiting and passes, worst", lambda r: f"{exact(r.worst_wait_s)} s, {r.passes_worst:,}"),
        row("output tokens, requests a second", _throughput),
        row("GPU-seconds", lambda r: f"{r.gpu_seconds:,.0f}"),
        row("GPU-seconds a million tokens", lambda r: f"{r.gpu_seconds_per_million:.2f}"),
        row("retractions, tokens again", lambda r: f"{r.retractions:,}, {r.recomputed_tokens:,}"),
        row("padding, spread of chunks", lambda r: f"{r.padding_share:.1%}, {r.chunk_spread:.2f}"),
    ]
    if any(result.experts_per_step for result in results.values()):
        rows.append(row("experts a step", lambda r: f"{r.experts_per_step:,.1f}"))
    return rows


def _model_rows(row: Row, results: Mapping[str, Result]) -> list[Line]:
    """What finished requests left behind, and each group's share of what was moved and is held."""
    names = dict.fromkeys(name for result in results.values() for name in result.groups)
    rows = [row("restorable at the end, mean", _restorable)]
    for name in names:
        rows.append(row(f"GB of {name} held: device, host, storage", partial(_held, name)))
        rows.append(row(f"GB of {name} moved", partial(_moved, name)))
    return rows


def _restorable(result: Result) -> str:
    found = result.restorable
    return f"{found.last:,}, {found.mean:,.0f}" if found else ""


def _held(name: str, result: Result) -> str:
    group = result.groups.get(name)
    return ", ".join(f"{pages * group.page_bytes / 1e9:,.1f}" for pages in group.held.values()) if group else ""


def _moved(name: str, result: Result) -> str:
    group = result.groups.get(name)
    return f"{sum(group.moved.values()) / 1e9:,.1f}" if group else ""


def _throughput(result: Result) -> str:
    return ", ".join(f"{value:,.1f}" for value in result.throughput.values())


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "0"


def _gb(result: Result, *directions: str) -> str:
    return ", ".join(f"{result.bytes_moved[direction] / 1e9:,.0f}" for direction in directions)


def _pair(result: Result, *names: str) -> str:
    found = result.baseline()
    return ", ".join(f"{found[name] / 1e9:,.0f}" for name in names)


def _times(values: Sequence[float]) -> str:
    found = percentiles(values)
    return ", ".join(exact(found[name]) for name in ("mean", "p50", "p99")) + " s" if found else ""
