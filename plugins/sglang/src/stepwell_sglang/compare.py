"""`python -m stepwell_sglang.compare`: the same pages through SGLang's own backend and Stepwell's, side by side.

All fill and empty the same real host pool, called as SGLang's controller calls them, in one process and in turns: a
round has new pages, and each step of it (`put`, `get`, and `cold`: a get after the kernel has dropped the files' pages)
is made by one side right after the other. Like is compared with like: where files can be read and written through the
page cache or past it, each way is a side of its own.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwell_sglang import peers, trial

DIM, HEADS, LAYERS = 128, 8, 8
STEPS = ("put", "get", "cold")
FOLDERS = ("file", "nixl")


@dataclass
class Taken:
    """Of each round."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Processor time of this process, all threads."""


@dataclass
class Side:
    """One of those compared; `against`: the name of the side of SGLang's that does likewise."""

    name: str
    driver: trial.Driver
    folder: Path
    against: str = ""
    taken: dict[str, Taken] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 where a page was not moved."""
    options = _options(arguments)
    logging.disable(logging.WARNING)
    results = [_measure(options, kib) for kib in options.page_kib]
    if options.json:
        print(json.dumps({"backend": options.backend, "mla": options.mla, "results": results}, indent=1))
        return 0
    for result in results:
        print(f"pages of {result['page_kib']} KiB, {result['pages']} of them; medians of {options.rounds} rounds")
        for name, steps in result["sides"].items():
            print(f"  {name:16}" + "".join(f" | {_told(step, found)}" for step, found in steps.items()))
    return 0


def _told(step: str, found: Mapping[str, float]) -> str:
    times = f"{found['times']:6.2f} x" if "times" in found else " " * 8
    return f"{step:4} {found['gb_s']:6.2f} GB/s {found['cpu_s_gb']:5.2f} s/GB {times}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stepwell_sglang.compare", description=__doc__)
    parser.add_argument("--backend", choices=(*FOLDERS, "mooncake"), default="file", help="of both sides")
    parser.add_argument("--path", type=Path, default=Path(), help="where folders for pages are made and removed")
    parser.add_argument("--master", help="of a Mooncake store with a segment; one is started unless it is named")
    parser.add_argument("--storage", type=json.loads, default={}, help="settings of Stepwell's storage, JSON")
    parser.add_argument("--extra", type=json.loads, default={}, help="more of the extra config of both sides, JSON")
    parser.add_argument("--verify", choices=("auto", "true", "false"), default="auto", help="Stepwell's seals")
    parser.add_argument("--page-kib", type=int, nargs="+", default=[256, 1024], help="size of a page, K and V")
    parser.add_argument("--mib", type=int, default=128, help="bytes moved each way in a step")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layout", default="page_first")
    parser.add_argument("--mla", action="store_true", help="a pool of latents rather than of keys and values")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace, kib: int) -> dict[str, Any]:
    pages = max(1, options.mib * 1024 // kib)
    pool = _pool(options, kib, pages)
    with _sides(options, pool) as sides:
        for number in range(options.rounds + 1):
            turns = sides if number % 2 else sides[::-1]
            _round(turns, pool, pages, f"{kib} {number}", kept=number > 0)
    gb = pages * kib * 1024 / 1e9
    named = {side.name: side for side in sides}
    return {
        "page_kib": kib,
        "pages": pages,
        "rounds": options.rounds,
        "sides": {
            side.name: {step: _found(gb, side, step, named.get(side.against)) for step in STEPS if step in side.taken}
            for side in sides
        },
    }


def _found(gb: float, side: Side, step: str, against: Side | None) -> dict[str, float]:
    """Medians; `times`: how many times as fast as the other side in the same round."""
    taken = side.taken[step]
    found = {
        "gb_s": round(gb / statistics.median(taken.seconds), 3),
        "cpu_s_gb": round(statistics.median(taken.processor) / gb, 3),
    }
    if against is not None:
        pairs = zip(against.taken[step].seconds, taken.seconds, strict=True)
        found["times"] = round(statistics.median(theirs / ours for theirs, ours in pairs), 3)
    return found


def _round(sides: Sequence[Side], pool: Any, pages: int, salt: str, *, kept: bool) -> None:
    import torch

    buffer = pool.kv_buffer.view(torch.uint8)
    buffer.random_(0, 256)
    source, target = pool.alloc(pages * pool.page_size), pool.alloc(pages * pool.page_size)
    hashes = [hashlib.sha256(f"{salt} {at}".encode()).hexdigest() for at in range(pages)]
    expected = _bytes(pool, source)
    for step in STEPS:
        for side in sides:
            if step == "cold" and not _drop(side.folder):
                continue
            _wipe(pool, target)
            move = side.driver.backup if step == "put" else side.driver.prefetch
            seconds, processor = _timed(move, hashes, source if step == "put" else target, side)
            if step != "put" and _bytes(pool, target) != expected:
                raise SystemExit(f"{side.name}: pages came back other than they were stored")
            if kept:
                taken = side.taken.setdefault(step, Taken())
                taken.seconds.append(seconds)
                taken.processor.append(processor)
    pool.free(source)
    pool.free(target)


def _timed(
    move: Callable[[Sequence[str], Any], int], hashes: Sequence[str], slots: Any, side: Side
) -> tuple[float, float]:
    start, processor = time.perf_counter(), time.process_time()
    moved = move(hashes, slots)
    took = time.perf_counter() - start, time.process_time() - processor
    if moved != len(hashes):
        raise SystemExit(f"{side.name}: {move.__name__} moved {moved} of {len(hashes)} pages")
    return took


# --- the sides -------------------------------------------------------------------------------------------------------


@contextmanager
def _sides(options: argparse.Namespace, pool: Any) -> Iterator[list[Side]]:
    home = Path(tempfile.mkdtemp(prefix="compare-", dir=options.path))
    sides: list[Side] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(_close, sides)
        if options.backend == "file":
            # SGLang's own knows the page cache only.
            sides.append(_own(options, pool, home / "sglang", {"file_storage_path": str(home / "sglang")}))
            for name, direct in (("stepwell cached", False), ("stepwell direct", "auto")):
                sides.append(_ours(options, pool, home / name, sides[0].name, {"direct": direct}))
        elif options.backend == "nixl":
            for how, direct in (("direct", True), ("cached", False)):
                own = _own(options, pool, home / f"sglang {how}", {"use_direct_io": direct})
                sides += [own, _ours(options, pool, home / f"stepwell {how}", own.name, {"direct": direct})]
        else:
            # Whether the client sums pages up is decided once a process, for both sides. SGLang leaves it off.
            checksum = bool(options.storage.get("checksum", False))
            os.environ["MOONCAKE_STORE_CHECKSUM"] = str(int(checksum))
            gib = 3 * (options.rounds + 1) * options.mib / 1024
            master = options.master or stack.enter_context(peers.mooncake(gib, checksum=checksum))
            theirs = {"master_server_address": master, "local_hostname": "127.0.0.1", "global_segment_size": 0}
            sides.append(_own(options, pool, home / "sglang", theirs))
            ours = {"master": master, "checksum": checksum}
            sides.append(_ours(options, pool, home / "stepwell", "sglang", ours))
        yield sides


def _close(sides: Sequence[Side]) -> None:
    for side in sides:
        with suppress(AttributeError):
            side.driver.backend.close()


def _own(options: argparse.Namespace, pool: Any, folder: Path, extra: Mapping[str, object]) -> Side:
    folder.mkdir()
    os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(folder)
    if options.backend == "nixl" and find_spec("nixl") is None and find_spec("nixl_cu12") is not None:
        sys.modules["nixl"] = importlib.import_module("nixl_cu12")  # a wheel for one CUDA has its own name
    config = trial.config({**extra, **options.extra}, mla=options.mla)
    backend = trial.attach(options.backend, pool, config)
    return Side(folder.name, trial.Driver(backend, pool, by_slot=options.backend != "file"), folder)


def _ours(options: argparse.Namespace, pool: Any, folder: Path, against: str, settings: Mapping[str, object]) -> Side:
    storage: Mapping[str, object] = {"use": options.backend, **settings, **options.storage}
    if options.backend in FOLDERS:
        storage = {"path": str(folder), "gib": 8, **storage}
    verify = {"auto": "auto", "true": True, "false": False}[options.verify]
    extra = trial.dynamic(storage, verify=verify, **options.extra)
    backend = trial.attach("dynamic", pool, trial.config(extra, mla=options.mla))
    return Side(folder.name, trial.Driver(backend, pool), folder, against)


# --- the pool --------------------------------------------------------------------------------------------------------


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
