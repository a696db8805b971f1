"""The `[replay]` table: the hardware that a replay pretends to have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepwell.schedule.timing import PRESETS, Timing

DEVICE_GIB = {"h200-llama8b": 105.0, "a10g-llama8b": 5.0, "cpu-smollm2": 1.0}
"""What weights and activations leave for pages on each preset's device: 141, 24 and no GB of memory, at 92%."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The `[replay]` table: model, device and storage that a replay simulates. Pages are set in `[cache]`."""

    preset: str = "h200-llama8b"
    """Model and device of the timing model: h200-llama8b, a10g-llama8b or cpu-smollm2."""
    devices: int = 4
    """Devices that share the model evenly: arithmetic, bandwidth, link and memory of all of them together."""
    storage_gib: float = 0.0
    """Size of simulated storage; 0: none. Needs a host tier."""
    storage_read_gb_s: float = 6.0
    """Bandwidth from storage to host, 1e9 bytes a second."""
    storage_write_gb_s: float = 3.0
    """Bandwidth from host to storage, 1e9 bytes a second."""
    storage_latency_ms: float = 1.0
    """Of each transfer and of each question what storage holds."""

    @property
    def timing(self) -> Timing:
        """The preset's model on all devices."""
        one, n = PRESETS[self.preset], self.devices
        return replace(one, flops=one.flops * n, bandwidth=one.bandwidth * n, link=one.link * n)

    @property
    def device_bytes(self) -> int:
        """For pages, on all devices: the weights are there once, whatever their number."""
        weights = PRESETS[self.preset].weight_bytes * (self.devices - 1)
        return int(DEVICE_GIB[self.preset] * 2**30 * self.devices + weights)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset: {self.preset!r} is none of {', '.join(PRESETS)}")
        if self.devices < 1:
            raise ValueError(f"devices: {self.devices} is less than 1")
        for name in ("storage_read_gb_s", "storage_write_gb_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("storage_gib", "storage_latency_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 0")
