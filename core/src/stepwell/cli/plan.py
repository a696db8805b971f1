"""`stepwell plan CONFIG`: what windows save for a model, how many prefixes fit, and the pools to set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from stepwell.cli.options import Number
from stepwell.cli.planned import DEVICE, HOST, RUNNING, STORAGE, GroupPlan, Plan, plan
from stepwell.errors import ConfigError
from stepwell.models import read_shape
from stepwell.settings import CacheSettings

LIBRARY = "huggingface_hub"
FILE = "config.json"
HUB_TIMEOUT_S = 10.0
MOST = 2**27
MOST_SHOWN = 256
"""Letters of a name that is no file's."""
GIB = Number(0, MOST, min_open=True)


@click.command(name="plan")
@click.argument("source", metavar="CONFIG")
@click.option("--tokens", type=click.IntRange(1, MOST), help="Tokens of a prefix. [cache.typical_tokens]")
@click.option("--device-gib", type=GIB, help="Device memory for pages.")
@click.option("--host-gib", type=GIB, help="Host memory for pages.")
@click.option("--storage-gib", type=GIB, help="Room in storage.")
@click.option("--running", type=click.IntRange(1, MOST), help="Requests that run at once. [engine.max_running]")
@click.option("--page-size", type=click.IntRange(1, MOST), help="Tokens a page. [cache.page_size]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    source: str,
    tokens: int | None,
    device_gib: float | None,
    host_gib: float | None,
    storage_gib: float | None,
    running: int | None,
    page_size: int | None,
    as_json: bool,
) -> None:
    """Say what windows save for a model, and how to size its pools.

    CONFIG is a model's config.json, a folder with one, or the model's name on the Hugging Face hub.
    """
    usual = CacheSettings()
    memory = {DEVICE: device_gib, HOST: host_gib, STORAGE: storage_gib}
    gib = {tier: amount for tier, amount in memory.items() if amount is not None}
    fields, origin = read(source)
    try:
        shape = read_shape(fields)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    planned = plan(shape, tokens or usual.typical_tokens, page_size or usual.page_size, gib, running or RUNNING)
    if as_json:
        click.echo(json.dumps(asdict(planned), indent=2))
    else:
        show(planned)


# --- where a config comes from ---------------------------------------------------------------------------------------


def read(source: str) -> tuple[Mapping[str, object], Path]:
    """The config and its file. Raises ConfigError."""
    path = _here(source) or _downloaded(source)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is no model's config: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: this is no model's config: a JSON object is wanted")
    return fields, path


def _here(source: str) -> Path | None:
    """The file on this machine, where it is a path of one or of its folder."""
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            path /= FILE
            if not path.is_file():
                raise ConfigError(f"{path.parent} has no {FILE}")
        return path if path.is_file() else None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{source[:MOST_SHOWN]}: this is no model's config: {why}") from error


def _downloaded(name: str) -> Path:
    """From the hub's cache on this machine, else from the hub."""
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or name.endswith(".json"):
        raise ConfigError(f"there is no file or folder {name}")
    try:
        library = import_module(LIBRARY)
    except ImportError:
        raise ConfigError(
            f"there is no file or folder {name}; to look for a model of that name on the hub, install {LIBRARY}"
        ) from None
    why: Exception | None = None
    for local in (True, False):
        try:
            if not local:  # without a network this fails at once; a download would be tried for half a minute
                library.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
            return Path(library.hf_hub_download(name, FILE, local_files_only=local))
        except Exception as error:
            why = error
    reason = (str(why).strip().splitlines() or [type(why).__name__])[0]
    raise ConfigError(f"there is no file or folder {name}, and the hub gives no {FILE} of that name: {reason}") from why


# --- on the terminal -------------------------------------------------------------------------------------------------


def show(planned: Plan) -> None:
    """Tables, the gain in a sentence, and the config."""
    console = Console()
    console.print(_groups(planned))
    whole, kept = (
        sum(group.bytes_per_page * pages(group) for group in planned.groups) for pages in (_full_pages, _kept_pages)
    )
    taken = f"A prefix of {planned.tokens} tokens takes {_amount(whole)}"
    if planned.limit == 1:
        click.echo(f"{taken}. No layer has a window or a chunk, so all of it is kept.")
    else:
        limit = "no bound for longer ones" if planned.limit is None else f"at most {planned.limit:.2f} for longer ones"
        click.echo(f"{taken} in full and {_amount(kept)} with windows: gain {planned.gain:.2f}, {limit}.")
    if planned.tiers:
        console.print(_tiers(planned))
        click.echo(f"\n{planned.toml}")
    else:
        click.echo("With --device-gib, --host-gib or --storage-gib it is said how many fit, and what to set.")


def _full_pages(group: GroupPlan) -> int:
    return group.pages_full


def _kept_pages(group: GroupPlan) -> int:
    return group.pages_kept


def _groups(planned: Plan) -> Table:
    table = Table(title=f"{planned.model}, pages of {planned.page_size} tokens")
    for name in ("group", "needs"):
        table.add_column(name)
    for name in ("layers", "a token", "a page", "pages", "kept"):
        table.add_column(name, justify="right")
    for group in planned.groups:
        low, high = group.pages_range
        kept = str(group.pages_kept) if low == high else f"{group.pages_kept} ({low} to {high})"
        sizes = _amount(group.bytes_per_token), _amount(group.bytes_per_page)
        table.add_row(group.name, group.need, str(group.layers), *sizes, str(group.pages_full), kept)
    return table


def _tiers(planned: Plan) -> Table:
    table = Table(title=f"Prefixes of {planned.tokens} tokens")
    table.add_column("tier")
    for name in ("GiB", "in full", "with windows", "times"):
        table.add_column(name, justify="right")
    for tier in planned.tiers:
        times = f"{tier.prefixes / tier.prefixes_full:.2f}" if tier.prefixes_full else "-"
        table.add_row(tier.tier, f"{tier.gib:g}", f"{tier.prefixes_full:.1f}", f"{tier.prefixes:.1f}", times)
    return table


def _amount(nbytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"
