"""What fits on a device: weights before they are loaded, a step's working memory by running one, pages with the rest.

Only `Device.now` and `peak` measure; the rest is arithmetic.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from stepwell import ConfigError

GIB = 2**30
SIZES = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1},
}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
PACKED = "_blocks", "_scales"
"""Names of tensors that hold two weights of four bits in a byte, and of their scales, which go as they are unpacked."""
LEAST = 1024
"""Tokens; a device with room for less is not worth starting."""
SAMPLED = 16
"""Bytes for each logit of a step's rows: candidates, log probabilities, counts of those with penalties."""
GRAPHS = 256 * 2**20
"""For the CUDA graphs themselves, beside what a step in them works with."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device's memory as it is now."""

    name: str
    free: int
    total: int

    @classmethod
    def now(cls, device: torch.device) -> Device:
        """Ask the driver; what others hold counts as taken, and what torch only keeps does not."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return cls(f"{device} ({torch.cuda.get_device_name(device)})", free, total)


@dataclass(frozen=True, slots=True)
class Share:
    """How a device's memory is divided once the weights are there."""

    device: Device
    share: float
    """`runner.memory`: of all of it, what may be taken together."""
    step: int
    """What the largest steps work with."""
    graphs: int

    @property
    def pages(self) -> int:
        """Bytes that are left for pages."""
        device = self.device
        taken = device.total - device.free
        allowed = min(int(device.total * self.share) - taken, device.free)
        return max(0, allowed - self.step - self.graphs)

    def __str__(self) -> str:
        device = self.device
        return (
            f"{device.name}: {gib(self.pages)} for pages, of {gib(device.total)} and runner.memory = {self.share:g}; "
            f"weights and others {gib(device.total - device.free)}, steps {gib(self.step)}, graphs {gib(self.graphs)}"
        )

    def check(self, name: str, token_bytes: int) -> None:
        """ConfigError where so little is left that nothing could be served."""
        if self.pages >= LEAST * token_bytes:
            return
        raise ConfigError(
            f"runner.model: {name} leaves room for {self.pages // token_bytes} tokens, of {gib(token_bytes)} each "
            f"({self}): use a smaller model, lower runner.chunk, or raise runner.memory"
        )


def check_weights(name: str, nbytes: int, device: Device, share: float) -> None:
    """ConfigError, before anything is loaded, where weights of so many bytes cannot be held."""
    allowed = min(device.free, int(device.total * share) - (device.total - device.free))
    if nbytes <= allowed:
        return
    of_share = "" if allowed == device.free else f", and runner.memory = {share:g} leaves {gib(max(0, allowed))} of it"
    remedy = "raise runner.memory, " if nbytes < device.free else ""
    if device.free < 0.9 * device.total:
        remedy += "end what else runs there, "
    raise ConfigError(
        f"runner.model: the weights of {name} take {gib(nbytes)} and {device.name} has {gib(device.free)} free of "
        f"{gib(device.total)}{of_share}: {remedy}use a smaller model or another runner.device"
    )


# --- weights ---------------------------------------------------------------------------------------------------


def weight_bytes(folder: Path, dtype: torch.dtype | None) -> int:
    """Bytes that a folder's weights take once they are loaded as `dtype`; None: as they are."""
    return sum(_loaded(name, *kind, dtype) for path in folder.glob("*.safetensors") for name, kind in _header(path))


def made_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's weights, also of one on no device; shared ones count once."""
    return sum(weight.nbytes for weight in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())


def _header(path: Path) -> list[tuple[str, tuple[str, int]]]:
    """Tensors of a file by name: their type, and how many numbers they hold."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: Mapping[str, Mapping[str, object]] = json.loads(file.read(length))
    found = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        start, end = tensor["data_offsets"]  # type: ignore[misc]
        kind = str(tensor["dtype"])
        found.append((name, (kind, (end - start) // SIZES.get(kind, 1))))
    return found


def _loaded(name: str, kind: str, numbers: int, dtype: torch.dtype | None) -> int:
    blocks, scales = PACKED
    if kind == "U8" and name.endswith(scales):
        return 0
    if kind == "U8" and name.endswith(blocks):
        return 2 * numbers * (dtype or torch.bfloat16).itemsize
    return numbers * (dtype.itemsize if dtype and kind in FLOATS else SIZES.get(kind, 1))


# --- steps -----------------------------------------------------------------------------------------------------


def peak(device: torch.device, work: Callable[[], object]) -> int:
    """The most that torch holds at once while something runs, beyond what it holds before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before)


def sampling_bytes(rows: int, vocab: int) -> int:
    """What drawing works with, and keeps of those with penalties, at most."""
    return SAMPLED * rows * vocab


def gib(nbytes: int) -> str:
    """Bytes for people."""
    if nbytes < 2**20:
        return f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / 2**20:.0f} MiB"
