"""`stepwell replay TRACE`: what caching does for recorded traffic, on a virtual clock or with time taken out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from stepwell.cli.options import Number, config_options, read_config
from stepwell.errors import ConfigError
from stepwell.replay import instant, trace
from stepwell.replay.answers import with_answers
from stepwell.replay.html import page
from stepwell.replay.result import Result, percentiles
from stepwell.replay.trace import MOONCAKE_BLOCK, Arrival
from stepwell.replay.variants import Variant, variants
from stepwell.replay.virtual import Shell
from stepwell.replay_build import build, eviction
from stepwell.settings import DEFAULTS, MOST, CacheSettings
from stepwell.types import Full

FASTEST = 1e9
"""Beyond it, or so much slower than recorded, is no replay of anything."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says; small enough to send to another process."""

    trace: Path
    block: int | None
    limit: int | None
    speed: float
    config: str | None
    sets: tuple[str, ...]
    price: float | None
    answers: bool

    def arrivals(self) -> list[Arrival]:
        """The trace."""
        arrivals = trace.load(self.trace, block=self.block or MOONCAKE_BLOCK, limit=self.limit, speed=self.speed)
        return with_answers(arrivals) if self.answers else arrivals


@click.command(name="replay")
@click.argument("trace_path", metavar="TRACE", type=click.Path(path_type=Path))
@config_options
@click.option(
    "--block-tokens",
    type=click.IntRange(1),
    help="Tokens a hash id stands for, and a page where cache.page_size is not set and no window is shorter. [512]",
)
@click.option("--limit", type=click.IntRange(1), help="Only the first so many requests.")
@click.option(
    "--speed",
    type=Number(FASTEST**-1, FASTEST),
    default=1.0,
    show_default=True,
    help="Arrivals come so many times as fast.",
)
@click.option(
    "--with-answers", "answers", is_flag=True, help="Take an answer to be in the prompt that goes on behind it."
)
@click.option(
    "--model", metavar="CONFIG.json", help="Model whose groups, bytes and arithmetic count; as replay.model does."
)
@click.option("--instant", "timeless", is_flag=True, help="Take time out: drive the index directly, device tier only.")
@click.option("--ablate", is_flag=True, help="Repeat it with each part off.")
@click.option("--price", type=Number(0, MOST), help="Price of an hour of the device, for money per million tokens.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes for --ablate.")
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="Also write one self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable results.")
def command(
    trace_path: Path,
    path: str | None,
    sets: tuple[str, ...],
    block_tokens: int | None,
    limit: int | None,
    speed: float,
    answers: bool,
    model: str | None,
    timeless: bool,
    ablate: bool,
    price: float | None,
    jobs: int,
    html_path: Path | None,
    as_json: bool,
) -> None:
    """Run TRACE through the brain, cache and policies with a virtual clock and a simulated device.

    TRACE is Mooncake JSONL (timestamp, input_length, output_length, hash_ids) or text JSONL (timestamp, input, output),
    plain or gzipped.
    """
    if model is not None:
        sets = (*sets, f"replay.model={model}")
    asked = Asked(trace_path, block_tokens, limit, speed, path, sets, price, answers)
    if timeless and model is not None:
        raise ConfigError("--instant knows no model, only blocks: leave --instant or --model out")
    if timeless and ablate:
        raise ConfigError("--ablate needs time: leave --instant or --ablate out")
    if html_path is not None:
        _writable(html_path)
    if timeless:
        results = {"instant": without_time(asked)}
    elif ablate:
        results = every_variant(asked, jobs, quiet=as_json)
    else:
        results = {"as configured": one(asked, Variant("as configured"))}
    if html_path is not None:
        html_path.write_text(page(f"Replay of {trace_path.name}", results, table_rows(results)), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(as_document(results), indent=1))
        return
    show(trace_path.name, results)
    if html_path is not None:
        click.echo(f"wrote {html_path}")


def _writable(path: Path) -> None:
    """ConfigError, before the work is done, where its page could not be written."""
    if path.is_dir():
        raise ConfigError(f"--html {path}: this is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"--html {path}: there is no folder {path.parent}")


def without_time(asked: Asked) -> Result:
    """The index alone."""
    config = read_config(asked.config, asked.sets)
    registry = config.load_plugins()
    cache = config.bind("cache", CacheSettings)
    if cache.device_pages is None:
        raise ConfigError("--instant needs the size of the cache in blocks: --set cache.device_pages=N")
    arrivals = asked.arrivals()
    policy = eviction(config, registry) if config.has("evict") else None
    config.finish(registry)
    result = instant.run(arrivals, cache.device_pages, policy)
    result.setup = {"device_pages": cache.device_pages, "block_tokens": arrivals[0].block}
    return result


def one(asked: Asked, variant: Variant) -> Result:
    """One timed replay."""
    config = read_config(asked.config, (*asked.sets, *variant.sets))
    registry = config.load_plugins()
    arrivals = asked.arrivals()
    parts, setup = build(config, registry, variant, arrivals[0].block)
    config.finish(registry)
    result = Shell(parts, arrivals).run()
    result.price_per_hour, result.setup = asked.price, setup
    return result


def every_variant(asked: Asked, jobs: int, *, quiet: bool) -> dict[str, Result]:
    """As configured and without each part, in parallel processes."""
    config = read_config(asked.config, asked.sets)
    registry = config.load_plugins()
    parts, setup = build(config, registry, Variant("as configured"), 1)
    wanted = variants(
        host=bool(setup["host_pages"]),
        storage=bool(setup["storage_gib"]),
        write=config.use("write", DEFAULTS["write"]),
        schedule=config.use("schedule", DEFAULTS["schedule"]),
        windows=any(not isinstance(group.need, Full) for group in parts.groups),
    )
    results: dict[str, Result] = {}
    console = Console(stderr=True, quiet=quiet)
    with ProcessPoolExecutor(jobs) as pool, console.status("replaying") as status:
        for variant, result in zip(wanted, pool.map(one, [asked] * len(wanted), wanted), strict=True):
            results[variant.name] = result
            status.update(f"replaying: {len(results)} of {len(wanted)} done")
    return results


def as_document(results: Mapping[str, Result]) -> dict[str, object]:
    """The first variant's fields on top, and under `variants` all of them where there are several."""
    documents = {name: result.as_json() for name, result in results.items()}
    first = next(iter(documents.values()))
    return first if len(documents) == 1 else {**first, "variants": documents}


def show(name: str, results: Mapping[str, Result]) -> None:
    """The table on the terminal."""
    table = Table(title=f"Replay of {name}")
    table.add_column("")
    for variant in results:
        table.add_column(variant, justify="right")
    for label, texts in table_rows(results):
        table.add_row(label, *texts)
    Console().print(table)


def table_rows(results: Mapping[str, Result]) -> list[tuple[str, list[str]]]:
    """Label and one text a variant, for the terminal and the page."""

    def row(label: str, text: Callable[[Result], str]) -> tuple[str, list[str]]:
        return label, [text(result) for result in results.values()]

    rows = [
        row("requests", lambda r: f"{r.requests:,}"),
        row("input tokens", lambda r: f"{r.all.input_tokens:,}"),
        row("hit tokens", lambda r: f"{r.all.total:,} ({r.all.share:.1%})"),
        row("  device", lambda r: _of(r.all.device, r.all.input_tokens)),
        row("  host", lambda r: _of(r.all.host, r.all.input_tokens)),
        row("  storage", lambda r: _of(r.all.storage, r.all.input_tokens)),
        row("hit tokens, last half", lambda r: f"{r.last_half.total:,} ({r.last_half.share:.1%})"),
    ]
    if any(result.gpu_seconds for result in results.values()):
        rows += _timed_rows(row)
    if any(result.restorable for result in results.values()):
        rows += _model_rows(row, results)
    if any(result.price_per_hour is not None for result in results.values()):
        rows.append(row("money a million tokens", lambda r: f"{r.money_per_million or 0:.4f}"))
    return [*rows, row("took", lambda r: f"{r.wall_s:.2f} s")]


Row = Callable[[str, Callable[[Result], str]], tuple[str, list[str]]]


def _timed_rows(row: Row) -> list[tuple[str, list[str]]]:
    return [
        row("finished, refused", lambda r: f"{r.finished:,}, {r.refused:,}"),
        row("GB saved, loaded", lambda r: _gb(r, "save", "load")),
        row("GB stored, fetched", lambda r: _gb(r, "store", "fetch")),
        row("GB moved, if all were moved", lambda r: _pair(r, "moved", "moved_if_all_saved_and_loaded")),
        row("GB computed, without cache", lambda r: _pair(r, "recomputed", "recomputed_without_cache")),
        row("TTFT mean, p50, p99", lambda r: _times(r.ttft_s)),
        row("latency mean, p50, p99", lambda r: _times(r.latency_s)),
        row("GPU-seconds", lambda r: f"{r.gpu_seconds:,.0f}"),
        row("GPU-seconds a million tokens", lambda r: f"{r.gpu_seconds_per_million:.2f}"),
        row("retractions", lambda r: f"{r.retractions:,}"),
    ]


def _model_rows(row: Row, results: Mapping[str, Result]) -> list[tuple[str, list[str]]]:
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


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "0"


def _gb(result: Result, *directions: str) -> str:
    return ", ".join(f"{result.bytes_moved[direction] / 1e9:,.0f}" for direction in directions)


def _pair(result: Result, *names: str) -> str:
    baseline = result.baseline()
    return ", ".join(f"{baseline[name] / 1e9:,.0f}" for name in names)


def _times(values: Sequence[float]) -> str:
    found = percentiles(values)
    return ", ".join(f"{found[name]:.2f}" for name in ("mean", "p50", "p99")) + " s" if found else ""
