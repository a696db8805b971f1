"""The `[replay]` table: the hardware that a replay pretends to have."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.schedule.presets import PRESETS
from stepwell.settings import above_zero, at_least

POLYNOMIAL = "polynomial"
DEVICE_GIB = {
    "h200-llama8b": 105.0,
    "h200-qwen3-30b-a3b": 62.0,
    "a10g-llama8b": 5.0,
    "cpu-smollm2": 1.0,
    POLYNOMIAL: 104.0,
}
"""What weights and activations leave for pages on each preset's device: H200s of 141 GB, an A10G of 24 GB, both at 92%,
and a CPU."""

MOST_EXPERTS = 1 << 14
"""Of one layer; no model has a tenth of them."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The `[replay]` table: model, device and storage that a replay simulates. Pages are set in `[cache]`."""

    preset: str = "h200-llama8b"
    """Device and, unless `model` says another, model: h200-llama8b, h200-qwen3-30b-a3b, a10g-llama8b, cpu-smollm2, or
    polynomial: two fitted polynomials in place of a device, as NVIDIA's serving simulators take them."""
    model: str | None = None
    """A model's Hugging Face config.json, or the folder that has it; it takes the place of the preset's model."""
    windows: bool = True
    """Off: layers of `model` that see a window are cached as if they saw everything."""
    restorable_every: int | None = None
    """Count after so many finished requests how many could be restored; 0: never. Unset: 1000 with `model`, else 0."""
    devices: int = 4
    """Devices that share the model evenly: arithmetic, bandwidth, link and memory of all of them together. The preset
    polynomial is of one device, and takes no other number."""
    tokenizer: str | None = None
    """Model whose tokenizer reads text traces, as the runner's `model` setting names it; unset: four bytes a token."""
    experts: int | None = None
    """Experts of a layer that the model's expert weights are divided into; unset: as many as the model has."""
    experts_per_token: int | None = None
    """Experts of a layer that a token chooses; unset: as many as the model's."""
    affinity: float = 0.0
    """Probability that a token chooses its experts among those that its request's routing key favours; else any."""
    favoured: int | None = None
    """Experts of a layer that a routing key favours; unset: twice as many as a token chooses."""
    affinity_seed: int = 0
    """Draws, with the key's text, which experts those are."""
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
        if self.preset not in (*PRESETS, POLYNOMIAL):
            raise ValueError(f"preset: {self.preset!r} is none of {', '.join((*PRESETS, POLYNOMIAL))}")
        for name in ("devices", "experts", "experts_per_token", "favoured"):
            at_least(name, getattr(self, name), 1)
        for name in ("restorable_every", "storage_gib", "storage_latency_ms", "affinity_seed"):
            at_least(name, getattr(self, name), 0)
        if (self.experts or 0) > MOST_EXPERTS:
            raise ValueError(f"experts: {self.experts} is more than can be meant")
        if not 0 <= self.affinity <= 1:
            raise ValueError(f"affinity: {self.affinity:g} is no probability, which is 0 to 1")
        for name in ("storage_read_gb_s", "storage_write_gb_s"):
            above_zero(name, getattr(self, name))
