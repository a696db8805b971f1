"""`stepwell replay TRACE`: what caching does for recorded traffic, on a virtual clock or with time taken out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click

from stepwell.cli.options import Number, config_options
from stepwell.cli.replay_checks import no_time, said_twice, writable
from stepwell.cli.replay_run import AS_CONFIGURED, Asked, Task, compared, every_variant, one
from stepwell.cli.replay_show import compared_rows, show, show_compared, table_rows, warn
from stepwell.errors import ConfigError
from stepwell.replay.compare import FASTEST, document, policies, sweeps
from stepwell.replay.html import compared_page, page
from stepwell.replay.result import Result
from stepwell.settings import MOST


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
@click.option(
    "--tokenizer",
    metavar="NAME|FOLDER",
    help="Model whose tokenizer reads a text trace; as replay.tokenizer does. [four bytes a token]",
)
@click.option("--instant", "timeless", is_flag=True, help="Take time out: drive the index directly, device tier only.")
@click.option("--ablate", is_flag=True, help="Repeat it with each part off.")
@click.option(
    "--compare",
    multiple=True,
    metavar="POLICY,POLICY",
    help="Repeat it with each schedule policy; one may have settings, as lpm:max_passes=16. The first is the baseline.",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="SECTION.KEY=VALUE,VALUE",
    help="Repeat it with each value of a setting, or of `speed`; several make a grid.",
)
@click.option("--price", type=Number(0, MOST), help="Price of an hour of the device, for money per million tokens.")
@click.option("--jobs", type=click.IntRange(1), help="Replays at a time, in processes of their own. [cores]")
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
    tokenizer: str | None,
    timeless: bool,
    ablate: bool,
    compare: tuple[str, ...],
    sweep: tuple[str, ...],
    price: float | None,
    jobs: int | None,
    html_path: Path | None,
    as_json: bool,
) -> None:
    """Run TRACE through the brain, cache and policies with a virtual clock and a simulated device.

    TRACE is Mooncake JSONL (timestamp, input_length, output_length, hash_ids) or text JSONL (timestamp, input, output),
    plain or gzipped.
    """
    named, swept = policies(compare), sweeps(sweep)
    if timeless:
        no_time(model=model is not None, ablate=ablate, compare=bool(named), speed=speed, swept=swept)
    said_twice(sets, speed, model is not None, named, swept)
    if ablate and (compare or sweep):
        raise ConfigError("--ablate turns parts off, --compare and --sweep change settings: give one or the others")
    if html_path is not None:
        writable(html_path)
    if model is not None:
        sets = (*sets, f"replay.model={model}")
    if tokenizer is not None:
        sets = (*sets, f"replay.tokenizer={tokenizer}")
    asked = Asked(trace_path, block_tokens, limit, speed, path, sets, price, answers, timeless)
    jobs = jobs or _cores()
    if named or swept:
        outcomes = compared(asked, named, swept, jobs, quiet=as_json)
        if html_path is not None:
            text = compared_page(f"Replay of {trace_path.name}", outcomes, compared_rows(outcomes))
            html_path.write_text(text, encoding="utf-8")
        if as_json:
            click.echo(json.dumps(document(trace_path.name, outcomes), indent=1))
        else:
            show_compared(trace_path.name, outcomes)
        warn((combination.name, result) for combination, result in outcomes)
    else:
        results = every_variant(asked, jobs, quiet=as_json) if ablate else _alone(asked, quiet=as_json)
        if html_path is not None:
            html_path.write_text(page(f"Replay of {trace_path.name}", results, table_rows(results)), encoding="utf-8")
        if as_json:
            click.echo(json.dumps(as_document(results), indent=1))
        else:
            show(trace_path.name, results)
        warn(results.items())
    if html_path is not None and not as_json:
        click.echo(f"wrote {html_path}")


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alone(asked: Asked, *, quiet: bool) -> dict[str, Result]:
    """One replay, in this process."""
    name = "instant" if asked.timeless else AS_CONFIGURED.name
    return {name: one(asked, asked.arrivals(quiet=quiet), Task(AS_CONFIGURED))}


def as_document(results: Mapping[str, Result]) -> dict[str, object]:
    """The first variant's fields on top, and under `variants` all of them where there are several."""
    documents = {name: result.as_json() for name, result in results.items()}
    first = next(iter(documents.values()))
    return first if len(documents) == 1 else {**first, "variants": documents}
