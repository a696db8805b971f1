"""From a method's name to movers that work here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.layout import UNIT, Layout, layout
from stepwell_kernels.transfer.mover import Mover, TorchMover
from stepwell_kernels.transfer.nvrtc import Unavailable

Method = Literal["auto", "cuda", "triton", "engine", "torch"]
Group = tuple[PagePool, HostPages]
Maker = Callable[[Sequence[Group], int | None, Path], list[Mover]]

CACHE = Path("~/.cache/stepwell/cubins")

_SLOW = "pages are copied by plain torch, which is slow and waits for each copy: %s"
_log = logging.getLogger(__name__)


def make_mover(
    pool: PagePool, host: HostPages, method: Method = "auto", blocks: int | None = None, cache: Path = CACHE
) -> Mover:
    """For one group; see `make_movers`."""
    (mover,) = make_movers([(pool, host)], method, blocks, cache)
    return mover


def make_movers(
    groups: Sequence[Group], method: Method = "auto", blocks: int | None = None, cache: Path = CACHE
) -> list[Mover]:
    """What copies pages between the pool and the slots of each group of one device.

    By `method`, or for "auto" by the best that works here. Pages that are no multiples of 16 bytes, and an arena that
    is not pinned, go by "torch" whatever was asked for, and the log says so. `blocks` bounds the thread blocks of
    kernels; compiled ones are kept in `cache`. Raises ValueError where a method asked for by its name does not work.
    """
    layouts = [layout(pool, host) for pool, host in groups]
    if method == "torch" or (method == "auto" and not _is_cuda(groups)):
        return _torch(groups)
    if reason := next(filter(None, map(_unfit, layouts, groups)), None):
        _log.warning(_SLOW, reason)
        return _torch(groups)
    reasons: list[str] = []
    for name in ("auto", "cuda", "triton") if method == "auto" else (method,):
        try:
            return _MAKERS[name](groups, blocks, cache.expanduser())
        except Unavailable as error:
            reasons.append(f"{name}: {error}")
    if method != "auto":
        raise ValueError(f"pages cannot be copied by {reasons[0]}")
    _log.warning(_SLOW, "; ".join(reasons))
    return _torch(groups)


def _is_cuda(groups: Sequence[Group]) -> bool:
    return any(pool.sides[0].device.type == "cuda" for pool, _ in groups)


def _unfit(at: Layout, group: Group) -> str | None:
    """Why only torch copies these pages."""
    pool, host = group
    if not at.in_units:
        sizes = [side.piece if at.parts == 1 else at.row(side) for side in at.sides]
        return f"pieces of {sizes} bytes, or their places, are no multiples of {UNIT}"
    pinned = pool.sides[0].device.type != "cuda" or host.sides[0].is_pinned()
    return None if pinned else "the arena is not pinned"


def _torch(groups: Sequence[Group]) -> list[Mover]:
    return [TorchMover(pool, host) for pool, host in groups]


def _auto(groups: Sequence[Group], blocks: int | None, cache: Path) -> list[Mover]:
    from stepwell_kernels.transfer.auto import AutoMover

    kernels, engines = _cuda(groups, blocks, cache), _engine(groups, blocks, cache)
    pairs = zip(groups, kernels, engines, strict=True)
    return [AutoMover(pool, host, kernel, engine) for (pool, host), kernel, engine in pairs]


def _cuda(groups: Sequence[Group], blocks: int | None, cache: Path) -> list[Mover]:
    from stepwell_kernels.transfer.cuda import CudaMover, PageKernel

    kernel = PageKernel(_device(groups), cache)
    return [CudaMover(pool, host, blocks, kernel) for pool, host in groups]


def _triton(groups: Sequence[Group], blocks: int | None, cache: Path) -> list[Mover]:
    try:
        from stepwell_kernels.transfer.triton_pages import TritonMover
    except ImportError as error:
        raise Unavailable(f"Triton is not installed ({error})") from error
    return [TritonMover(pool, host, blocks) for pool, host in groups]


def _engine(groups: Sequence[Group], blocks: int | None, cache: Path) -> list[Mover]:
    from stepwell_kernels.transfer.batch import Batch
    from stepwell_kernels.transfer.cuda import PageKernel
    from stepwell_kernels.transfer.engine import EngineMover, Engines

    device = _device(groups)
    largest = max(pool.shape.page_bytes for pool, _ in groups)
    try:
        engines = Engines(device, Batch(), PageKernel(device, cache), largest)
    except torch.OutOfMemoryError as error:
        raise Unavailable(f"no device memory is left for staging ({error})") from error
    return [EngineMover(pool, host, engines) for pool, host in groups]


def _device(groups: Sequence[Group]) -> torch.device:
    device = groups[0][0].sides[0].device
    if device.type != "cuda":
        raise Unavailable(f"the pool is on {device}, not on a CUDA device")
    return device


_MAKERS: Mapping[str, Maker] = {"auto": _auto, "cuda": _cuda, "triton": _triton, "engine": _engine}
