"""The `[replay]` table: the hardware that a replay pretends to have."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.schedule.timing import PRESETS
from stepwell.settings import above_zero, at_least

DEVICE_GIB = {"h200-llama8b": 105.0, "a10g-llama8b": 5.0, "cpu-smollm2": 1.0}
"""What weights and activations leave for pages on each preset's device: 141, 24 and no GB of memory, at 92%."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The `[replay]` table: model, device and storage that a replay simulates. Pages are set in `[cache]`."""

    preset: str = "h200-llama8b"
    """Device and, unless `model` says another, model: h200-llama8b, a10g-llama8b or cpu-smollm2."""
    model: str | None = None
    """A model's Hugging Face config.json, or the folder that has it; it takes the place of the preset's model."""
    windows: bool = True
    """Off: layers of `model` that see a window are cached as if they saw everything."""
    restorable_every: int | None = None
    """Count after so many finished requests how many could be restored; 0: never. Unset: 1000 with `model`, else 0."""
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
    def sample_every(self) -> int:
        """Finished requests between two counts of those that could be restored; 0: none is made."""
        if self.restorable_every is None:
            return 1000 if self.model else 0
        return self.restorable_every

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset: {self.preset!r} is none of {', '.join(PRESETS)}")
        for name, least in (("devices", 1), ("restorable_every", 0), ("storage_gib", 0), ("storage_latency_ms", 0)):
            at_least(name, getattr(self, name), least)
        for name in ("storage_read_gb_s", "storage_write_gb_s"):
            above_zero(name, getattr(self, name))
