"""`stepwell bench storage`: how fast a backend puts and gets pages, next to the fastest that can be there.

That is the backend's own client library with nothing of ours around it where the plugin offers that, `fio` on the same
disk for another backend that keeps files, and one copy in memory for all others.

Backend and baseline take turns, and take turns in who goes first, so that whatever else the machine does meets both.
Pages lie in a real arena. Everything read is checked to have been read, and everything put is forgotten in the end.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import click
import numpy as np

from stepwell.bench.baseline import Baseline, Fio, Memcpy, Plain, Terms, can_direct, drop_page_cache, filesystem
from stepwell.bench.moves import Bare, Batches, Subject
from stepwell.bench.own_time import OpTime, measure_own
from stepwell.bench.rates import Asked, Row, measure
from stepwell.bench.target import Target, made, native
from stepwell.cache.arena import BLOCK, Arena
from stepwell.cli.storage_open import Store, room, storage_options
from stepwell.config import Chosen
from stepwell.errors import ConfigError, StepwellError

DEFAULT_THREADS = 4
PROFILED_PAGES = 4096
PROFILED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Load:
    """How much is moved a round, how often, and how."""

    mib: int
    rounds: int
    per_call: int
    callers: int

    def __str__(self) -> str:
        return f"{self.per_call} pages a call, {self.callers} calls at once; rounds: {self.rounds} of {self.mib} MiB"


@click.command()
@storage_options
@click.option(
    "--path", "folder", metavar="DIR", help="Where a backend that keeps files has its folder; it is removed afterwards."
)
@click.option("--page-kib", "page_kib", type=click.IntRange(4), multiple=True, help="Page size; may be repeated.")
@click.option("--mib", type=click.IntRange(1), default=512, show_default=True, help="Bytes a round.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--pages-per-call", "per_call", type=click.IntRange(1), default=64, show_default=True, help="Pages of a batch."
)
@click.option("--callers", type=click.IntRange(1, 64), default=2, show_default=True, help="Batches at once.")
@click.option("--profile", is_flag=True, help="Also say what of a page's time is spent in Stepwell's own Python.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    backend: str | None,
    path: str | None,
    sets: Sequence[str],
    folder: str | None,
    page_kib: Sequence[int],
    mib: int,
    rounds: int,
    per_call: int,
    callers: int,
    profile: bool,
    as_json: bool,
) -> None:
    """Put and get pages in a storage, next to its own client library, to fio on the same disk, or to a copy in memory.

    Everything that was put is deleted afterwards, after Ctrl-C and failures too.
    """
    target, load = Target(backend, path, sets), Load(mib, rounds, per_call, callers)
    rows: list[Row] = []
    asked: list[Asked] = []
    terms: list[str] = []
    own: list[OpTime] = []
    with _ended_by_sigterm(), _scratch(folder or target.folder()) as scratch:
        for kib in page_kib or (256, 1024):
            found, keys, said = _one_size(target, scratch / str(kib), kib, load)
            rows += found
            asked.append(keys)
            terms += [line for line in said if line not in terms]
        if profile:
            own = _profile(target, scratch / "profile")
        terms.append(f"{filesystem(scratch)}; {load}")
    if as_json:
        result: dict[str, object] = {"rows": [asdict(row) for row in rows], "contains": [asdict(one) for one in asked]}
        if profile:
            result["profile"] = [asdict(one) for one in own]
        click.echo(json.dumps({**result, "terms": terms}, indent=2))
        return
    for line in (*rows, *asked, *own):
        click.echo(str(line))
    for text in terms:
        click.echo(f"  {text}")


def _one_size(target: Target, folder: Path, kib: int, load: Load) -> tuple[list[Row], Asked, list[str]]:
    """Rows of one page size, and the terms on which they came about."""
    page_bytes, pages = kib * 1024, max(1, load.mib * 1024 // kib)
    if page_bytes % BLOCK:
        raise ConfigError(f"--page-kib {kib}: pages are whole blocks of 4 KiB")
    folder.mkdir()
    choice, keeps_files = target.choose(folder / "store")
    with ExitStack() as undo:
        arena = room(choice, pages, page_bytes, "--mib")
        undo.callback(arena.close)
        _fill(arena)
        store = undo.enter_context(made(choice, folder, arena))

        def drop() -> None:
            if keeps_files:
                drop_page_cache(folder)

        subject = Subject(store, Batches(arena, load.per_call, load.callers), drop)
        undo.push(_last(subject.clear))
        baseline, plain = _baselines(choice, folder, arena, keeps_files)
        if choice.offer.native is not None:
            batches = Batches(arena, load.per_call, load.callers)
            bare = Bare(lambda: native(choice, folder, arena), batches, store, drop)
            undo.push(_last(bare.close))
            baseline, plain = bare, (baseline if isinstance(baseline, Plain) else plain)
        rows, asked = measure(choice.offer.name, subject, baseline, plain, page_bytes, pages, load.rounds)
    return rows, asked, _said(baseline, plain)


def _profile(target: Target, folder: Path) -> list[OpTime]:
    """What a page costs in a batch of many small ones, where bytes count least."""
    folder.mkdir()
    arena = room(target.choose(folder / "store")[0], PROFILED_PAGES, PROFILED_BYTES, "--profile")
    _fill(arena)

    def another() -> AbstractContextManager[Store]:
        return made(target.choose(Path(tempfile.mkdtemp(dir=folder)) / "store")[0], folder, arena)

    try:
        return measure_own(another, arena)
    finally:
        arena.close()


def _last(call: Callable[[], None]) -> Callable[[type[BaseException] | None, object, object], None]:
    """A call that tidies up: after a failure its own is only said, since what went wrong first counts."""

    def tidy(kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            call()
        except StepwellError as why:
            if kind is None:
                raise
            click.echo(f"pages of this measurement may be left behind: {why}", err=True)

    return tidy


def _baselines(choice: Chosen, folder: Path, arena: Arena, keeps_files: bool) -> tuple[Baseline, Baseline | None]:
    _, page_bytes, _ = arena.slots(0)
    pages = arena.nbytes // page_bytes
    if not keeps_files:
        return Memcpy(arena.memory, page_bytes, pages), None
    threads = min(int(getattr(choice.settings, "threads", DEFAULT_THREADS)), pages)
    direct = getattr(choice.settings, "direct", True) is not False and can_direct(folder)
    aside = folder / "baseline"
    aside.mkdir()
    terms = Terms(aside, page_bytes, pages // threads * threads, threads, direct)
    plain = Plain(terms, arena.memory)
    return (plain, None) if Fio.missing() else (Fio(terms), plain)


def _said(baseline: Baseline, plain: Baseline | None) -> list[str]:
    if isinstance(baseline, Plain):
        return [f"fio is not installed, so the baseline is plain: {baseline.terms}"]
    return [f"{one.name}: {one.terms}" for one in (baseline, plain) if one is not None]


def _fill(arena: Arena) -> None:
    """Bytes that no disk can squeeze, and of which no two pages are alike."""
    random = np.random.default_rng(0)
    whole = np.frombuffer(arena.memory, dtype=np.uint8)
    for at in range(0, len(whole), 1 << 24):
        part = whole[at : at + (1 << 24)]
        part[:] = np.frombuffer(random.bytes(len(part)), dtype=np.uint8)


@contextmanager
def _scratch(root: str | Path | None) -> Iterator[Path]:
    try:
        if root is not None:
            Path(root).mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=root)
    except OSError as error:
        raise ConfigError(f"--path {root}: {error.strerror}; name a folder that can be written") from None
    with folder as name:
        yield Path(name)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A polite kill is like Ctrl-C: what was put is deleted first. Only the main thread is told of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
