"""The baseline of page copies: a loop in C that calls cudaMemcpyAsync for each page, layer and K or V."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import which

import numpy as np
import torch

from stepwell_kernels.transfer import Way
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.pieces import pieces
from stepwell_transformers.bench.transfer_scene import Scene

CALLS = 32768
"""Calls of one turn at most; more would only take longer."""
SOURCE = """
typedef int (*Copy)(unsigned long, unsigned long, unsigned long, int, void *);

int loop(Copy copy, const unsigned long *to, const unsigned long *from, const unsigned long *sizes, long count,
         int kind, void *stream) {
    for (long i = 0; i < count; i++) {
        int failed = copy(to[i], from[i], sizes[i], kind, stream);
        if (failed) return failed;
    }
    return 0;
}
"""
KINDS = {Way.LOAD: 1, Way.SAVE: 2}


class MemcpyLoop:
    """Compiled with this machine's C compiler. Raises OSError where there is none, or no CUDA runtime is loaded."""

    def __init__(self) -> None:
        compiler = which("cc") or which("gcc") or which("clang")
        if compiler is None:
            raise OSError("there is no C compiler")
        self._copy = ctypes.cast(ctypes.CDLL(_runtime()).cudaMemcpyAsync, ctypes.c_void_p)
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
            source.write_text(SOURCE)
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
            self._loop = ctypes.CDLL(str(library)).loop

    def copier(self, scene: Scene, way: Way) -> tuple[Callable[[], None], int]:
        """Enqueues the scene's pages, or the first of them as far as CALLS reach; and the bytes of that."""
        shape, ids = scene.pool.shape, scene.ids[way]
        pages = min(len(ids.device), max(1, CALLS // (2 * shape.layers)))
        copies = pieces(way, layout(scene.pool, scene.host), 0, shape.layers, ids.device[:pages], ids.host[:pages])
        order = np.arange(len(copies.sizes)).reshape(-1, shape.layers, pages).transpose(2, 1, 0).reshape(-1)
        arrays = [np.ascontiguousarray(array[order]) for array in (copies.target, copies.source, copies.sizes)]

        def copy() -> None:
            failed = self._loop(
                self._copy,
                *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
                ctypes.c_long(len(order)),
                KINDS[way],
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
            if failed:
                raise RuntimeError(f"cudaMemcpyAsync failed with code {failed}")

        return copy, pages * shape.page_bytes


def _runtime() -> str:
    """The CUDA runtime that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart.so" in line:
            return line.split(maxsplit=5)[5]
    raise OSError("no CUDA runtime library is loaded")
