"""`stepwell plugins`: a line for each plugin; never fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from stepwell.cli.options import read_config
from stepwell.cli.probe import survey
from stepwell.records import Record


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Print the traceback of each plugin that failed.")
def plugins(as_json: bool, verbose: bool) -> None:
    """List the installed plugins and what became of each.

    They are imported in a process apart. The exit status is 0 whatever they do.
    """
    records, _ = survey("", {}, read_config(None))
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
        return
    for line in lines(records):
        click.echo(line)
    for record in records if verbose else ():
        if record.traceback:
            click.echo(f"\n{record.label}\n{record.traceback.rstrip()}")


def lines(records: Sequence[Record]) -> list[str]:
    """State, name, distribution, and what it offers or why it does not, in columns."""
    rows = [(record.state, record.name, f"{record.distribution} {record.version}".strip()) for record in records]
    widths = [max((len(row[at]) for row in rows), default=0) + 2 for at in range(3)]
    tails = ["; ".join(filter(None, [", ".join(r.offers) if r.loaded else "", r.reason])) for r in records]
    cells = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [(cell + tail).rstrip() for cell, tail in zip(cells, tails, strict=True)]
