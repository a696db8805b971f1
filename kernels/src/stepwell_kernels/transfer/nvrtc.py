"""CUDA C++ compiled when it is needed, kept on disk, and launched on torch's current stream.

Through `cuda.bindings`, which torch's own CUDA builds bring.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


class Unavailable(RuntimeError):
    """Kernels cannot be compiled or loaded here; the message says why."""


def architecture(device: torch.device) -> str:
    """Of a CUDA device, as compilers name it."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def compiled(source: str, target: str, cache: Path) -> bytes:
    """Machine code of `source` for an architecture, from `cache` where it was compiled before. Raises Unavailable."""
    nvrtc = _bindings("nvrtc")
    options = (f"--gpu-architecture={target}", "--std=c++17")
    version = _checked(nvrtc, nvrtc.nvrtcVersion())
    kept = cache / f"{hashlib.sha256(repr((source, options, version)).encode()).hexdigest()[:32]}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    image = _compile(nvrtc, source, options)
    _keep(kept, image)
    return image


def _compile(nvrtc: Any, source: str, options: Sequence[str]) -> bytes:
    (program,) = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"stepwell.cu", 0, [], []))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        if failed:
            (size,) = _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
            log = bytearray(size)
            _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
            raise Unavailable(f"NVRTC does not compile for {options[0]}: {log.rstrip(bytes(1)).decode()}")
        (size,) = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        image = bytearray(size)
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, image))
        return bytes(image)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _keep(kept: Path, image: bytes) -> None:
    """Whole or not at all, as several processes may compile at once; a folder that takes nothing is no error."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(image)
        os.replace(file.name, kept)  # noqa: PTH105
    except OSError:
        return


class Library:
    """Loaded machine code."""

    def __init__(self, image: bytes, device: torch.device) -> None:
        self._driver = _bindings("driver")
        self._device = device
        torch.empty(1, device=device)  # makes torch's context, if nothing has yet
        with torch.cuda.device(device):
            (self._module,) = _checked(self._driver, self._driver.cuModuleLoadData(image))
            (self._context,) = _checked(self._driver, self._driver.cuCtxGetCurrent())

    def kernel(self, name: str) -> Kernel:
        """By its unmangled name."""
        (function,) = _checked(self._driver, self._driver.cuModuleGetFunction(self._module, name.encode()))
        return Kernel(self._driver, function, self._context)


class Kernel:
    """A kernel that takes one structure by value."""

    def __init__(self, driver: Any, function: Any, context: Any) -> None:
        self._driver = driver
        self._function = function
        self._context = context

    def launch(self, blocks: int, threads: int, argument: ctypes.Structure, stream: int) -> None:
        """Enqueue it; `argument` is copied before this returns."""
        places = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        arguments = (self._function, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(places), 0)
        code = self._driver.cuLaunchKernel(*arguments)
        if code[0] == self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # a thread that has not used CUDA yet
            _checked(self._driver, self._driver.cuCtxSetCurrent(self._context))
            code = self._driver.cuLaunchKernel(*arguments)
        _checked(self._driver, code)


def _bindings(name: str) -> Any:
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise Unavailable(f"no cuda.bindings here ({error}); torch's CUDA builds bring it") from error


def _checked(library: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]):
        raise Unavailable(f"{library.__name__}: {result[0].name}")
    return result[1:]
