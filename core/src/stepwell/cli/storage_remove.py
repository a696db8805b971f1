"""`stepwell storage rm` and `clear`: make a storage forget pages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepwell.cli.storage_open import KEYS_A_CALL, Store, opened, storage_options
from stepwell.errors import ConfigError
from stepwell.types import DIGEST_BYTES, TAG_BYTES, PageKey

DIGITS = 2 * (DIGEST_BYTES + TAG_BYTES)


@click.command()
@storage_options
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def rm(backend: str | None, path: str | None, sets: Sequence[str], keys: Sequence[str], as_json: bool) -> None:
    """Remove the pages of KEY..., and say how many were there.

    A KEY is 80 hexadecimal digits; `-` reads keys from standard input, the first word of each line: what `ls` prints.
    """
    asked = there = 0
    given = [key(text, "KEY") for text in keys if text != "-"]
    with opened(backend, path, sets) as (store, _):
        for some in batches(chain(given, piped() if "-" in keys else ())):
            there += sum(map(bool, store.contains(some)))
            asked += len(some)
            store.delete(some)
    if as_json:
        click.echo(json.dumps({"asked": asked, "there": there}))
        return
    others = asked - there
    left = f"; {others} {'was' if others == 1 else 'were'} not there" if others else ""
    click.echo(f"{_removed(store)} {there:,} of {_pages(asked)}{left}")


@click.command()
@storage_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def clear(backend: str | None, path: str | None, sets: Sequence[str], yes: bool, as_json: bool) -> None:
    """Remove all pages.

    What others keep in the same place stays. An engine that runs meanwhile goes on, and stores new ones.
    """
    with opened(backend, path, sets, lists="clear") as (store, _):
        if not yes and not _sure(store):
            click.echo("nothing was removed")
            sys.exit(1)
        count, nbytes = _clear(store)
    if as_json:
        click.echo(json.dumps({"pages": count, "nbytes": nbytes}))
    else:
        click.echo(f"{_removed(store)} {_pages(count)}, {decimal(nbytes)}")


def key(text: str, where: str) -> PageKey:
    """A key from its digits; ConfigError where they are none."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(text) != DIGITS or 2 * len(found) != DIGITS:
        shown = text if len(text) <= DIGITS else f"{text[:DIGITS]}..."
        raise ConfigError(f"{where} {shown!r} is no key: a key has {DIGITS} hexadecimal digits")
    return found


def piped() -> Iterator[PageKey]:
    """Keys from standard input."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed, and KEY '-' reads keys from it")
    for number, line in enumerate(sys.stdin.buffer, 1):
        words = line.split()
        if words:
            yield key(words[0].decode(errors="replace"), f"line {number}:")


def batches(keys: Iterable[PageKey]) -> Iterator[list[PageKey]]:
    """Keys as they are handed to a storage, none twice in a call."""
    source = iter(keys)
    while some := list(dict.fromkeys(islice(source, KEYS_A_CALL))):
        yield some


def _sure(store: Store) -> bool:
    """Whether the user wants it gone; said with what it is."""
    count = nbytes = 0
    for batch in store.pages():
        count += len(batch)
        nbytes += sum(page.nbytes for page in batch)
    try:
        return click.confirm(f"Remove {_pages(count)}, {decimal(nbytes)}, from {store.name}?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise ConfigError("nobody answered, so nothing was removed: give --yes where nobody can be asked") from None


def _clear(store: Store) -> tuple[int, int]:
    """Pages and bytes that are gone. What Ctrl-C leaves is a storage with fewer pages, which is said."""
    count = nbytes = 0
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("looking for pages", total=None)
            for batch in store.pages():
                store.delete([page.key for page in batch])
                count += len(batch)
                nbytes += sum(page.nbytes for page in batch)
                progress.update(task, description=f"removed {count:,} pages, {decimal(nbytes)}")
    except KeyboardInterrupt:
        click.echo(f"{_removed(store)} {_pages(count)}, {decimal(nbytes)}; the rest stays", err=True)
        raise
    return count, nbytes


def _removed(store: Store) -> str:
    """What may be said of pages that were deleted."""
    return "removed" if store.deletes else "asked the storage to drop"


def _pages(count: int) -> str:
    return f"{count:,} page{'' if count == 1 else 's'}"
