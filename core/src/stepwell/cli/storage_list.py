"""`stepwell storage ls` and `du`: what a storage holds. Both take pages as they come and keep none, however many."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import click
from rich.filesize import decimal

from stepwell.cli.storage_open import opened, storage_options
from stepwell.errors import ConfigError
from stepwell.types import TAG_BYTES

LINES_AT_ONCE = 1000


@click.command()
@storage_options
@click.option("--limit", type=click.IntRange(1, sys.maxsize), metavar="N", help="Stop after so many pages.")
@click.option("--prefix", default="", metavar="HEX", help="Only pages whose key begins so.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def ls(
    backend: str | None, path: str | None, sets: Sequence[str], limit: int | None, prefix: str, as_json: bool
) -> None:
    """List the pages: key and bytes, a line each, in no order.

    The lines are what `stepwell storage rm -` takes.
    """
    begins = prefix.lower()
    if not re.fullmatch(r"[0-9a-f]*", begins):
        raise ConfigError(f"--prefix {prefix!r}: a key begins with digits 0-9 and a-f")
    with opened(backend, path, sets, lists="ls") as (store, _):
        pages = ((page.key.hex(), page.nbytes) for batch in store.pages() for page in batch)
        found = (page for page in pages if page[0].startswith(begins))
        for some in _batches(_line(*page, as_json) for page in islice(found, limit)):
            click.echo("\n".join(some))


@click.command()
@storage_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def du(backend: str | None, path: str | None, sets: Sequence[str], as_json: bool) -> None:
    """Say how many pages and bytes there are, in all and for each attention group.

    A group is known by its tag, the last 16 digits of a key.
    """
    pages: Counter[bytes] = Counter()
    nbytes: Counter[bytes] = Counter()
    with opened(backend, path, sets, lists="du") as (store, _):
        for batch in store.pages():
            for page in batch:
                tag = page.key[-TAG_BYTES:]
                pages[tag] += 1
                nbytes[tag] += page.nbytes
    groups = [(tag.hex(), pages[tag], size) for tag, size in nbytes.most_common()]
    total = ("total", pages.total(), nbytes.total())
    if as_json:
        listed = [dict(zip(("tag", "pages", "nbytes"), group, strict=True)) for group in groups]
        click.echo(json.dumps({"pages": total[1], "nbytes": total[2], "groups": listed}, indent=2))
        return
    for name, count, size in (*groups, total):
        click.echo(f"{name:<16}  {count:>12,} pages  {size:>19,} bytes  {decimal(size):>9}")


def _line(key: str, nbytes: int, as_json: bool) -> str:
    return json.dumps({"key": key, "nbytes": nbytes}) if as_json else f"{key}  {nbytes}"


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines to be written in one go: a call for each would take longer than all else."""
    source = iter(lines)
    while some := list(islice(source, LINES_AT_ONCE)):
        yield some
