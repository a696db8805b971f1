"""What a bench prints: lines of progress while it runs, then a table, or JSON that says where it came from."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

PACKAGES = ("stepwell", "stepwell-kernels", "stepwell-transformers", "torch", "triton", "transformers", "cuda-bindings")

Row = Mapping[str, object]


def progress(text: str) -> None:
    """A line for those who wait."""
    click.echo(text, err=True)


def about(device: torch.device) -> dict[str, object]:
    """Where, when and with what this was measured."""
    cuda = device.type == "cuda"
    return {
        "command": shlex.join(["stepwell", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def show(result: Mapping[str, object], columns: Mapping[str, str], rows: Sequence[Row], as_json: bool) -> None:
    """All of it as JSON, or `columns` (heads by key) of the rows as a table below what it is about."""
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in columns.values():
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    console = Console(width=None if sys.stdout.isatty() else 160)
    for key in ("device", "model", "ceilings"):
        if key in result:
            console.print(f"{key}: {_said(result[key])}", highlight=False)
    console.print(table)


def middle(times: Sequence[float]) -> dict[str, float]:
    """Median, least and most, in milliseconds; seconds in."""
    return {"ms": ms(median(times)), "least_ms": ms(min(times)), "most_ms": ms(max(times))}


def ms(seconds: float) -> float:
    """Milliseconds, as much as means anything."""
    return round(seconds * 1e3, 4)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return str(value)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
        case int():
            return f"{value:,}"
    return str(value)
