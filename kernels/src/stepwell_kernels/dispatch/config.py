"""Settings of the dispatchers that come with the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell import Dispatcher, Part


@dataclass(frozen=True, slots=True)
class CollectiveConfig:
    """The `[runner.dispatch]` table when `use = "collective"`."""

    timeout_s: float = 60.0
    """How long the others are waited for before they count as lost."""

    def __post_init__(self) -> None:
        _positive("timeout_s", self.timeout_s)


@dataclass(frozen=True, slots=True)
class LowLatencyConfig:
    """The `[runner.dispatch]` table when `use = "collective-low-latency"`."""

    capacity: int = 128
    """Most tokens that a rank brings to one dispatch; as many are sent, whatever there is."""
    timeout_s: float = 60.0
    """How long the others are waited for before they count as lost."""

    def __post_init__(self) -> None:
        _positive("capacity", self.capacity)
        _positive("timeout_s", self.timeout_s)


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """The `[runner.dispatch]` table when `use = "auto"`."""

    normal: Part[Dispatcher[Any]]
    """For steps that compute prompts, and for all that are too large for the other: `[runner.dispatch.normal]`."""
    low_latency: Part[Dispatcher[Any]]
    """For steps that only decode: `[runner.dispatch.low_latency]`."""


@dataclass(frozen=True, slots=True)
class SlowedConfig:
    """The `[runner.dispatch]` table when `use = "slowed"`."""

    inner: Part[Dispatcher[Any]]
    """What sends: `[runner.dispatch.inner]`."""
    gb_per_s: float = 50.0
    """Bytes of a rank's tokens that go to others in a nanosecond, and that come back."""
    latency_us: float = 0.0
    """What each direction takes besides."""

    def __post_init__(self) -> None:
        _positive("gb_per_s", self.gb_per_s)
        if not 0 <= self.latency_us < MOST:
            raise ValueError(f"latency_us: {self.latency_us:g} is not between 0 and {MOST:g}")


MOST = 1e9
"""What no setting reaches."""


def _positive(name: str, value: float) -> None:
    if not 0 < value < MOST:
        raise ValueError(f"{name}: {value:g} is not between 0 and {MOST:g}")
