"""`stepwell storage verify`: read every page that a storage holds, and check it as the engine does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepwell.cache.arena import BLOCK
from stepwell.cli.lazy import INTERRUPTED
from stepwell.cli.storage_check import Bad, Sums, Verifier
from stepwell.cli.storage_open import opened, storage_options


@click.command()
@storage_options
@click.option("--threads", type=click.IntRange(1, 64), default=4, show_default=True, help="Reads at once.")
@click.option("--memory-mib", type=click.IntRange(1), default=128, show_default=True, help="Memory to read into.")
@click.option("--delete", is_flag=True, help="Remove damaged pages; those that could not be read stay.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify(
    backend: str | None,
    path: str | None,
    sets: Sequence[str],
    threads: int,
    memory_mib: int,
    delete: bool,
    as_json: bool,
) -> None:
    """Read every page and check its trailer: whose page it is, how long, and what its bytes sum up to.

    Exit status 1 if a page is damaged or could not be read. A page that goes meanwhile is neither; engines that use the
    storage may go on.
    """
    region = max(BLOCK, (memory_mib << 20) // threads // BLOCK * BLOCK)
    with opened(backend, path, sets, lists="verify", regions=threads, region_bytes=region) as (store, arena):
        start = time.monotonic()
        verifier = Verifier(store, arena, threads, delete)
        try:
            _watch(verifier)
            complete = True
        except KeyboardInterrupt:
            complete = False
        finally:
            verifier.stop()
        sums, seconds = verifier.sums, time.monotonic() - start
    click.echo(_as_json(sums, seconds, complete) if as_json else "\n".join(_lines(sums, seconds, complete)))
    if not complete:
        sys.exit(INTERRUPTED)
    if sums.damaged or sums.unreadable:
        sys.exit(1)


def _watch(verifier: Verifier) -> None:
    """Run it, and show how far it is where somebody watches."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking for pages", total=None)
        for _ in verifier.run():
            progress.update(task, description=_sentence(verifier.sums))


def _sentence(sums: Sums) -> str:
    parts = [
        f"{sums.good:,} good",
        f"{len(sums.damaged):,} damaged" + (f" ({sums.deleted:,} deleted)" if sums.deleted else ""),
        f"{len(sums.unreadable):,} unreadable",
        f"{sums.vanished:,} gone meanwhile",
    ]
    return f"{sums.pages:,} pages, {decimal(sums.nbytes)}: {', '.join(parts)}"


def _lines(sums: Sums, seconds: float, complete: bool) -> list[str]:
    lines = [
        f"{what:<10}  {bad.key.hex()}  {bad.nbytes}  {bad.why}"
        for what, some in (("damaged", sums.damaged), ("unreadable", sums.unreadable))
        for bad in some
    ]
    rate = sums.nbytes / max(seconds, 1e-9) / 1e6
    stopped = "" if complete else "interrupted; "
    return [*lines, f"{stopped}{_sentence(sums)} ({seconds:.1f} s, {rate:,.0f} MB/s)"]


def _as_json(sums: Sums, seconds: float, complete: bool) -> str:
    found = {
        "complete": complete,
        "pages": sums.pages,
        "nbytes": sums.nbytes,
        "good": sums.good,
        "vanished": sums.vanished,
        "deleted": sums.deleted,
        "damaged": [_bad(bad) for bad in sums.damaged],
        "unreadable": [_bad(bad) for bad in sums.unreadable],
        "seconds": round(seconds, 3),
    }
    return json.dumps(found, indent=2)


def _bad(bad: Bad) -> dict[str, object]:
    return {"key": bad.key.hex(), "nbytes": bad.nbytes, "why": bad.why}
