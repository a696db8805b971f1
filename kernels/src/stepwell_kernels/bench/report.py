"""What a bench prints: lines of progress while it runs, then a table, or JSON that says where it came from."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import click
import torch
from rich.console import Console
from rich.table import Table


def progress(text: str) -> None:
    """A line for those who wait."""
    click.echo(text, err=True)


def about(device: str) -> dict[str, object]:
    """Where, when and with what this was measured."""
    return {
        "command": shlex.join(["stepwell", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("stepwell", "stepwell-kernels", "torch")},
    }


def show(
    result: Mapping[str, object], columns: Mapping[str, str], rows: Sequence[Mapping[str, object]], as_json: bool
) -> None:
    """All of it as JSON, or `columns` (heads by key) of the rows as a table below what it was measured on."""
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in columns.values():
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"device: {result['device']}", highlight=False)
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else str(value)
