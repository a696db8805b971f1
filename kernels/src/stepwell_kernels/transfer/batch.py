"""Many copies handed to the copy engines in one call of the driver, cuMemcpyBatchAsync.

Called through ctypes with arrays of numpy, as a list of Python numbers for each of thousands of copies takes longer
than the copies.
"""

from __future__ import annotations

import ctypes

import numpy as np

from stepwell_kernels.transfer.nvrtc import Unavailable
from stepwell_kernels.transfer.pieces import Copies

_IN_STREAM_ORDER = 1
_OVERLAP_WITH_COMPUTE = 1


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Attributes(ctypes.Structure):
    _fields_ = [("order", ctypes.c_int), ("source", _Location), ("target", _Location), ("flags", ctypes.c_uint)]


class Batch:
    """The call, as this driver has it. Raises Unavailable where it has none."""

    def __init__(self) -> None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unavailable(f"no CUDA driver here: {error}") from error
        newest = getattr(driver, "cuMemcpyBatchAsync_v2", None)
        call = newest or getattr(driver, "cuMemcpyBatchAsync", None)
        if call is None:
            raise Unavailable("this CUDA driver has no cuMemcpyBatchAsync (12.8 and later have)")
        call.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_size_t, *[ctypes.c_void_p] * 2, ctypes.c_size_t]
        call.argtypes += [ctypes.c_void_p] if newest is not None else [ctypes.c_void_p] * 2
        self._call = call
        self._attributes = _Attributes(order=_IN_STREAM_ORDER, flags=_OVERLAP_WITH_COMPUTE)
        self._from_first, self._failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        failed = [] if newest is not None else [ctypes.addressof(self._failed)]
        self._rest = (ctypes.addressof(self._attributes), ctypes.addressof(self._from_first), 1, *failed)

    def enqueue(self, copies: Copies, stream: int) -> None:
        """On a stream that is not the default one. Raises RuntimeError."""
        arrays = [np.ascontiguousarray(array) for array in (copies.target, copies.source, copies.sizes)]
        code = self._call(*(array.ctypes.data for array in arrays), len(copies.sizes), *self._rest, stream)
        if code:
            raise RuntimeError(f"cuMemcpyBatchAsync of {len(copies.sizes)} copies failed with code {code}")
