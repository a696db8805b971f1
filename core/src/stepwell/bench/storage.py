"""`stepwell bench storage`: how fast a backend puts and gets pages, next to `fio` on the same disk.

Backend and baseline take turns, and take turns in who goes first, so that whatever else the machine does meets both.
Pages lie in a real arena. Everything read is checked to have been read.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from stepwell.abc.storage import Storage
from stepwell.assemble import Place
from stepwell.bench.baseline import Baseline, Fio, Memcpy, Plain, Terms, can_direct, drop_page_cache, filesystem
from stepwell.cache.arena import TRAILER_BYTES, Arena
from stepwell.cli.options import read_config, set_option
from stepwell.config import Chosen
from stepwell.errors import ConfigError, StepwellError
from stepwell.offers import Context
from stepwell.types import Done, Full, GroupSpec, PageKey, PageResult

BATCH = 64
CALLERS = 2
"""Pages a call, and calls at once: what the engine does for one fetch."""
DEFAULT_THREADS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One operation on pages of one size: medians in MB/s (10^6 bytes), and the least and most of all rounds."""

    backend: str
    page_bytes: int
    op: str
    mb_s: float
    baseline: str
    baseline_mb_s: float
    ratio: float
    spread: tuple[float, float]
    baseline_spread: tuple[float, float]
    plain_mb_s: float | None = None
    """Plain system calls on the backend's own memory, where the backend keeps files."""
    plain_ratio: float | None = None


class Subject:
    """A backend and its pages: puts and gets all of them in batches, and says how fast."""

    def __init__(self, storage: Storage, arena: Arena, pages: int, drop: Callable[[], None]) -> None:
        self._storage, self._arena, self._drop = storage, arena, drop
        self._pages = pages
        _, self._page_bytes, _ = arena.slots(0)
        self._marks = np.frombuffer(arena.memory, dtype=np.uint8).reshape(pages, self._page_bytes)[:, :8]
        self._keys: list[PageKey] = []
        storage.attach(arena)

    def put(self) -> float:
        """Store every page under a new key."""
        self._keys = [os.urandom(40) for _ in range(self._pages)]
        return self._time("write", self._storage.write)

    def get(self) -> float:
        """Read every page back."""
        marks = self._marks.copy()
        self._marks[:] = 0
        self._drop()
        rate = self._time("read", self._storage.read)
        if not np.array_equal(marks, self._marks):
            raise StepwellError("the backend answered done for pages that it did not fill")
        return rate

    def clear(self) -> None:
        """Forget all pages."""
        self._storage.delete(self._keys)

    def _time(self, verb: str, call: Callable[..., Sequence[PageResult]]) -> float:
        """MB/s of all pages, in batches, from `CALLERS` threads."""
        starts = range(0, self._pages, BATCH)
        batches = [np.arange(at, min(at + BATCH, self._pages), dtype=np.int32) for at in starts]

        def work(ids: npt.NDArray[np.int32]) -> list[PageResult]:
            results = call(self._keys[ids[0] : ids[-1] + 1], self._arena.views(0, ids))
            if len(results) != len(ids):
                raise StepwellError(f"{len(ids)} pages got {len(results)} answers")
            return [result for result in results if not isinstance(result, Done)]

        with ThreadPoolExecutor(CALLERS) as pool:
            start = time.perf_counter()
            bad = [result for some in pool.map(work, batches) for result in some]
            spent = time.perf_counter() - start
        if bad:
            raise StepwellError(f"{len(bad)} of {self._pages} pages did not {verb}, the first for {bad[0]}")
        return self._pages * self._page_bytes / spent / 1e6


def measure(
    name: str, subject: Subject, baseline: Baseline, plain: Baseline | None, page_bytes: int, rounds: int
) -> list[Row]:
    """A row for put and one for get, from `rounds` rounds in which all take turns; one before them is not counted."""
    rates: dict[tuple[str, str], list[float]] = {}
    sides: list[tuple[str, Subject | Baseline]] = [("subject", subject), ("baseline", baseline)]
    if plain is not None and plain is not baseline:
        sides.append(("plain", plain))
    for round in range(rounds + 1):
        for side, one in sides if round % 2 else sides[::-1]:
            for op, run in (("put", one.put), ("get", one.get)):
                rate = run()
                if round:
                    rates.setdefault((side, op), []).append(rate)
        subject.clear()
    return [_row(name, page_bytes, op, baseline.name, rates) for op in ("put", "get")]


def _row(name: str, page_bytes: int, op: str, baseline: str, rates: dict[tuple[str, str], list[float]]) -> Row:
    own, other, plain = rates["subject", op], rates["baseline", op], rates.get(("plain", op))
    middle, base = statistics.median(own), statistics.median(other)
    return Row(
        backend=name,
        page_bytes=page_bytes,
        op=op,
        mb_s=round(middle, 1),
        baseline=baseline,
        baseline_mb_s=round(base, 1),
        ratio=round(middle / base, 3),
        spread=(round(min(own), 1), round(max(own), 1)),
        baseline_spread=(round(min(other), 1), round(max(other), 1)),
        plain_mb_s=round(statistics.median(plain), 1) if plain else None,
        plain_ratio=round(middle / statistics.median(plain), 3) if plain else None,
    )


@click.command()
@click.option("--backend", required=True, metavar="NAME", help="The storage to measure, as in `[storage] use`.")
@click.option(
    "--path", metavar="DIR", help="Where a backend that keeps files has its folder; it is removed afterwards."
)
@click.option("--page-kib", "page_kib", type=click.IntRange(4), multiple=True, help="Page size; may be repeated.")
@click.option("--mib", type=click.IntRange(1), default=512, show_default=True, help="Bytes a round.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@set_option
def command(
    backend: str, path: str | None, page_kib: Sequence[int], mib: int, rounds: int, as_json: bool, sets: Sequence[str]
) -> None:
    """Put and get pages in a storage backend, next to fio on the same disk."""
    rows: list[Row] = []
    terms: list[str] = []
    with _scratch(path) as folder:
        for kib in page_kib or (256, 1024):
            pages = max(1, mib * 1024 // kib)
            found, said = _one_size(backend, folder / str(kib), sets, kib * 1024, pages, rounds)
            rows += found
            terms += said
        terms.append(f"{filesystem(folder)}; {BATCH} pages a call, {CALLERS} calls at once, {mib} MiB a round")
    if as_json:
        click.echo(json.dumps({"rows": [asdict(row) for row in rows], "terms": terms}, indent=2))
        return
    for row in rows:
        click.echo(_line(row))
    for line in terms:
        click.echo(f"  {line}")


def _line(row: Row) -> str:
    text = (
        f"{row.backend}  {row.page_bytes // 1024} KiB  {row.op}  {row.mb_s:,.0f} MB/s "
        f"[{row.spread[0]:,.0f}-{row.spread[1]:,.0f}]  {row.baseline} {row.baseline_mb_s:,.0f} "
        f"[{row.baseline_spread[0]:,.0f}-{row.baseline_spread[1]:,.0f}]  ratio {row.ratio:.2f}"
    )
    return text + (f"  plain {row.plain_mb_s:,.0f}, ratio {row.plain_ratio:.2f}" if row.plain_mb_s else "")


def _one_size(
    backend: str, folder: Path, sets: Sequence[str], page_bytes: int, pages: int, rounds: int
) -> tuple[list[Row], list[str]]:
    """Rows of one page size, and the terms on which they came about."""
    if page_bytes % 4096:
        raise ConfigError(f"--page-kib {page_bytes // 1024}: pages are whole blocks of 4 KiB")
    folder.mkdir()
    chosen, keeps_files = _choose(backend, folder / "store", sets)
    arena = Arena.create([GroupSpec("bench", Full(), page_bytes - TRAILER_BYTES, (0,))], 1, [pages], setting="--mib")
    storage: Storage | None = None
    try:
        _fill(arena)
        context: Context = Place(chosen.offer.name, "cpu", lambda: folder)
        storage = chosen.offer.make(chosen.settings, context)
        subject = Subject(storage, arena, pages, lambda: drop_page_cache(folder))
        baseline, plain = _baselines(chosen.settings, folder, arena, page_bytes, pages, keeps_files)
        rows = measure(backend, subject, baseline, plain, page_bytes, rounds)
        return rows, _said(baseline, plain)
    finally:
        if storage is not None:
            storage.close()
        arena.close()


def _choose(backend: str, folder: Path, sets: Sequence[str]) -> tuple[Chosen, bool]:
    """The backend with its settings, and whether it keeps files: it then has a setting `path`."""
    config = read_config(None, (), {})
    registry = config.load_plugins()
    fields: dict[str, Any] = getattr(registry.offer("storage", backend).config, "__dataclass_fields__", {})
    keeps_files = "path" in fields
    extra = {"storage.use": backend} | ({"storage.path": str(folder)} if keeps_files else {})
    config = read_config(None, sets, extra)
    return config.choose("storage", "storage", registry, backend), keeps_files


def _baselines(
    settings: object, folder: Path, arena: Arena, page_bytes: int, pages: int, keeps_files: bool
) -> tuple[Baseline, Baseline | None]:
    if not keeps_files:
        return Memcpy(arena.memory, page_bytes, pages), None
    threads = min(int(getattr(settings, "threads", DEFAULT_THREADS)), pages)
    direct = getattr(settings, "direct", True) is not False and can_direct(folder)
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
def _scratch(path: str | None) -> Iterator[Path]:
    try:
        if path is not None:
            Path(path).mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=path)
    except OSError as error:
        raise ConfigError(f"--path {path}: {error.strerror}; name a folder that can be written") from None
    with folder as name:
        yield Path(name)
