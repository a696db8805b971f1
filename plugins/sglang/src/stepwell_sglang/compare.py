"""`python -m stepwell_sglang.compare`: the same pages through SGLang's own backend and Stepwell's, side by side.

Both fill and empty the same real host pool, called as SGLang's controller calls them, in one process and in turns. Each
round has new pages. What is read is first read as it was left (`get`), then again after the kernel has dropped the
files' pages (`cold`), where there are files.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwell_sglang import trial

DIM, HEADS, LAYERS = 128, 8, 8


@dataclass
class Side:
    """One of the two."""

    name: str
    driver: trial.Driver
    folder: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 where a page was not moved."""
    options = _options(arguments)
    logging.disable(logging.WARNING)
    os.environ.setdefault("SGLANG_HICACHE_NIXL_USE_DIRECT_IO", "1")
    results = [_measure(options, kib) for kib in options.page_kib]
    if options.json:
        print(json.dumps({"backend": options.backend, "mla": options.mla, "results": results}, indent=1))
    else:
        for result in results:
            print(f"pages of {result['page_kib']} KiB, {result['pages']} of them, GB/s")
            for name, rates in result["gb_s"].items():
                print(f"  {name:10}" + "".join(f"  {what} {rate:7.2f}" for what, rate in rates.items()))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stepwell_sglang.compare", description=__doc__)
    parser.add_argument("--backend", default="file", help="file, nixl or mooncake: of both sides")
    parser.add_argument("--path", type=Path, default=Path(), help="where folders for pages are made and removed")
    parser.add_argument("--storage", type=json.loads, default={}, help="settings of Stepwell's storage, JSON")
    parser.add_argument("--extra", type=json.loads, default={}, help="extra config of SGLang's own backend, JSON")
    parser.add_argument("--verify", choices=("auto", "true", "false"), default="auto", help="Stepwell's seals")
    parser.add_argument("--page-kib", type=int, nargs="+", default=[256, 1024], help="size of a page, K and V")
    parser.add_argument("--mib", type=int, default=128, help="bytes moved each way in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layout", default="page_first")
    parser.add_argument("--mla", action="store_true", help="a pool of latents rather than of keys and values")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace, kib: int) -> dict[str, Any]:
    pages = max(1, options.mib * 1024 // kib)
    pool = _pool(options, kib, pages)
    home = Path(tempfile.mkdtemp(prefix="compare-", dir=options.path))
    sides: list[Side] = []
    try:
        sides = [_own(options, pool, home / "sglang"), _ours(options, pool, home / "stepwell")]
        for number in range(options.rounds + 1):
            turns = sides if number % 2 else sides[::-1]
            _round(turns, pool, pages, f"{kib} {number}", warm=number == 0)
    finally:
        for side in sides:
            with suppress(AttributeError):
                side.driver.backend.close()
        shutil.rmtree(home, ignore_errors=True)
    moved = pages * kib * 1024 / 1e9
    rates = {
        side.name: {what: round(moved / statistics.median(taken), 3) for what, taken in side.seconds.items()}
        for side in sides
    }
    return {"page_kib": kib, "pages": pages, "rounds": options.rounds, "gb_s": rates}


def _round(sides: Sequence[Side], pool: Any, pages: int, salt: str, *, warm: bool) -> None:
    import torch

    buffer = pool.kv_buffer.view(torch.uint8)
    buffer.random_(0, 256)
    source, target = pool.alloc(pages * pool.page_size), pool.alloc(pages * pool.page_size)
    hashes = [hashlib.sha256(f"{salt} {at}".encode()).hexdigest() for at in range(pages)]
    expected = _bytes(pool, source)
    for side in sides:
        taken = {"put": _timed(side.driver.backup, hashes, source, side)}
        for what in ("get", "cold"):
            if what == "cold" and not _drop(side.folder):
                continue
            _wipe(pool, target)
            taken[what] = _timed(side.driver.prefetch, hashes, target, side)
            if _bytes(pool, target) != expected:
                raise SystemExit(f"{side.name}: pages came back other than they were stored")
        for what, seconds in taken.items():
            if not warm:
                side.seconds.setdefault(what, []).append(seconds)
    pool.free(source)
    pool.free(target)


def _timed(move: Callable[[Sequence[str], Any], int], hashes: Sequence[str], slots: Any, side: Side) -> float:
    start = time.perf_counter()
    moved = move(hashes, slots)
    seconds = time.perf_counter() - start
    if moved != len(hashes):
        raise SystemExit(f"{side.name}: {move.__name__} moved {moved} of {len(hashes)} pages")
    return seconds


def _own(options: argparse.Namespace, pool: Any, folder: Path) -> Side:
    folder.mkdir()
    os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(folder)
    extra = {"file_storage_path": str(folder), **options.extra} if options.backend == "file" else options.extra
    if options.backend == "nixl" and find_spec("nixl") is None and find_spec("nixl_cu12") is not None:
        sys.modules["nixl"] = importlib.import_module("nixl_cu12")  # a wheel for one CUDA has its own name
    backend = trial.attach(options.backend, pool, trial.config(extra, mla=options.mla))
    return Side("sglang", trial.Driver(backend, pool, by_slot=options.backend != "file"), folder)


def _ours(options: argparse.Namespace, pool: Any, folder: Path) -> Side:
    storage: Mapping[str, object] = {"use": options.backend, **options.storage}
    if options.backend in ("file", "nixl"):
        storage = {"path": str(folder), "gib": 8, **storage}
    verify = {"auto": "auto", "true": True, "false": False}[options.verify]
    extra = trial.dynamic(storage, verify=verify)
    backend = trial.attach("dynamic", pool, trial.config(extra, mla=options.mla))
    return Side("stepwell", trial.Driver(backend, pool), folder)


def _pool(options: argparse.Namespace, kib: int, pages: int) -> Any:
    """Room for twice `pages` of this size."""
    tokens = kib * 1024 // (LAYERS * 2 * (2 * HEADS * DIM if not options.mla else 512))
    if options.mla:
        return trial.mla(options.layout, page=tokens, layers=LAYERS, pages=2 * pages)
    return trial.mha(options.layout, page=tokens, layers=LAYERS, heads=HEADS, dim=DIM, pages=2 * pages)


def _bytes(pool: Any, slots: Any) -> str:
    from stepwell_sglang.flat import bytes_of

    total = hashlib.blake2b()
    for at in slots[:: pool.page_size].tolist():
        page = pool.get_data_page(at)
        total.update(bytes_of(page))
    return total.hexdigest()


def _wipe(pool: Any, slots: Any) -> None:
    page = pool.get_dummy_flat_data_page()
    for at in slots[:: pool.page_size].tolist():
        pool.set_from_flat_data_page(at, page)


def _drop(folder: Path) -> bool:
    """Have the kernel forget what it holds of these files; False where there are none."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return bool(files)


if __name__ == "__main__":
    sys.exit(main())
