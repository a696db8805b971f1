"""From a method's name to a mover that works here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.layout import UNIT, Layout, layout
from stepwell_kernels.transfer.mover import Mover, TorchMover
from stepwell_kernels.transfer.nvrtc import Unavailable
from stepwell_kernels.transfer.rule import blocks_for

Method = Literal["auto", "cuda", "triton", "engine", "torch"]
Maker = Callable[[PagePool, HostPages, int, Path], Mover]

CACHE = Path("~/.cache/stepwell/cubins")

_log = logging.getLogger(__name__)


def make_mover(
    pool: PagePool, host: HostPages, method: Method = "auto", blocks: int | None = None, cache: Path = CACHE
) -> Mover:
    """What copies pages between `pool` and `host`, by `method`, or for "auto" by the best that works here.

    Pages that are no multiples of 16 bytes, and an arena that is not pinned, go by "torch" whatever was asked for, and
    the log says so. `blocks` bounds the thread blocks of kernels; compiled ones are kept in `cache`. Raises ValueError
    where a method that was asked for by its name does not work here.
    """
    at = layout(pool, host)
    on_cuda = pool.sides[0].device.type == "cuda"
    if method == "torch" or (method == "auto" and not on_cuda):
        return TorchMover(pool, host)
    if reason := _unfit(at, host, on_cuda):
        _log.warning("pages are copied by plain torch, which is slow and waits for each copy: %s", reason)
        return TorchMover(pool, host)
    quota = blocks or blocks_for(min(side.piece for side in at.sides))
    reasons = {}
    for name in ("cuda", "triton") if method == "auto" else (method,):
        try:
            return _MAKERS[name](pool, host, quota, cache.expanduser())
        except Unavailable as error:
            reasons[name] = str(error)
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    if method != "auto":
        raise ValueError(f"pages cannot be copied by {why}")
    _log.warning("pages are copied by plain torch, which is slow and waits for each copy: %s", why)
    return TorchMover(pool, host)


def _unfit(at: Layout, host: HostPages, on_cuda: bool) -> str | None:
    """Why only torch copies these pages."""
    if not at.in_units:
        return f"pieces of {[side.piece for side in at.sides]} bytes, or their places, are no multiples of {UNIT}"
    return "the arena is not pinned" if on_cuda and not host.sides[0].is_pinned() else None


def _cuda(pool: PagePool, host: HostPages, blocks: int, cache: Path) -> Mover:
    from stepwell_kernels.transfer.cuda import CudaMover, PageKernel

    _need_cuda(pool)
    return CudaMover(pool, host, blocks, PageKernel(pool.sides[0].device, cache))


def _triton(pool: PagePool, host: HostPages, blocks: int, cache: Path) -> Mover:
    try:
        from stepwell_kernels.transfer.triton_pages import TritonMover
    except ImportError as error:
        raise Unavailable(f"Triton is not installed ({error})") from error
    return TritonMover(pool, host, blocks)


def _engine(pool: PagePool, host: HostPages, blocks: int, cache: Path) -> Mover:
    from stepwell_kernels.transfer.batch import Batch
    from stepwell_kernels.transfer.cuda import PageKernel
    from stepwell_kernels.transfer.engine import EngineMover

    _need_cuda(pool)
    return EngineMover(pool, host, blocks, Batch(), PageKernel(pool.sides[0].device, cache))


def _need_cuda(pool: PagePool) -> None:
    if pool.sides[0].device.type != "cuda":
        raise Unavailable(f"the pool is on {pool.sides[0].device}, not on a CUDA device")


_MAKERS: Mapping[str, Maker] = {"cuda": _cuda, "triton": _triton, "engine": _engine}
