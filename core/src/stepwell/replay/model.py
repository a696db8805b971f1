"""The model and the devices that a replay pretends to have: a preset's own model, or one from a Hugging Face config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.config import DEFAULT, Config
from stepwell.errors import ConfigError
from stepwell.models import read_shape
from stepwell.replay.affinity import Affinity
from stepwell.replay.settings import DEVICE_GIB, POLYNOMIAL, ReplaySettings
from stepwell.replay.weights import timing_of
from stepwell.schedule.polynomial import KV_BYTES, LAYERS, Polynomial
from stepwell.schedule.presets import PRESETS
from stepwell.schedule.timing import Clock, Timing
from stepwell.types import Chunked, Full, GroupSpec, Window

GIB = 2**30
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Pretended:
    """A model on devices."""

    name: str
    timing: Timing | None
    """Of all devices together; None: two polynomials tell the time."""
    groups: tuple[GroupSpec, ...]
    device_bytes: int
    """For pages, on all devices together."""
    least: int | None
    """Tokens of the model's shortest window or chunk, also where all is replayed as full attention; None: no window."""
    devices: int
    affinity: Affinity | None = None
    """How tokens choose experts, of a model that has some."""

    def clock(self, capacity: int) -> Clock:
        """What steps take where the devices hold `capacity` tokens."""
        return self.timing or Polynomial(capacity)

    def page(self, block: int) -> int:
        """Tokens a page, so that blocks are whole pages and none keeps more than the shortest window asks for."""
        if self.least is None or self.least >= block:
            return block
        return next(size for size in range(self.least, 0, -1) if block % size == 0)


def pretend(config: Config, settings: ReplaySettings) -> Pretended:
    """What the `[replay]` table says. Raises ConfigError where a model cannot be read or does not fit."""
    if settings.preset == POLYNOMIAL:
        return _polynomial(config, settings)
    device = PRESETS[settings.preset]
    weights = device.weight_bytes + device.expert_bytes
    room = DEVICE_GIB[settings.preset] * GIB + weights
    if settings.model is None:
        group = GroupSpec("full", Full(), int(device.kv_bytes), tuple(range(device.layers)))
        return _on(config, settings, settings.preset, device, (group,), room, weights, None)
    path, fields = _read(config, settings.model)
    try:
        shape = read_shape(fields)
        timing, held = timing_of(shape, fields, device)
    except ConfigError as error:
        raise config.error("replay", "model", f"{path}: {error}") from error
    least = int(held // room) + 1
    if settings.devices < least:
        raise config.error(
            "replay",
            "model",
            f"the weights take {held / 1e9:,.1f} GB, and {settings.devices} x {settings.preset} have "
            f"{room * settings.devices / 1e9:,.1f} GB for weights and pages; set replay.devices to {least} or more",
        )
    groups = shape.groups()
    shortest = min((_span(group.need) for group in groups if not isinstance(group.need, Full)), default=None)
    seen = groups if settings.windows else (_all_full(groups),)
    return _on(config, settings, settings.model, timing, seen, room, held, shortest)


def _polynomial(config: Config, settings: ReplaySettings) -> Pretended:
    """One device, and the pages of the model that is simulated with it elsewhere."""
    if settings.model is not None:
        raise config.error(
            "replay", "model", "the preset polynomial knows no model's arithmetic; leave one of them out"
        )
    if settings.devices > 1 and config.origin("replay", "devices") is not DEFAULT:
        raise config.error("replay", "devices", "the preset polynomial is of one device; set it to 1, or leave it out")
    _no_experts(config, settings, "the preset polynomial")
    group = GroupSpec("full", Full(), KV_BYTES, tuple(range(LAYERS)))
    return Pretended(POLYNOMIAL, None, (group,), int(DEVICE_GIB[POLYNOMIAL] * GIB), None, 1)


def _on(
    config: Config,
    settings: ReplaySettings,
    name: str,
    one: Timing,
    groups: tuple[GroupSpec, ...],
    room: float,
    held: float,
    least: int | None,
) -> Pretended:
    """Devices share a model evenly; the weights are there once, whatever their number."""
    n = settings.devices
    timing, affinity = _experts(config, settings, name, one)
    timing = replace(timing, flops=one.flops * n, bandwidth=one.bandwidth * n, link=one.link * n)
    return Pretended(name, timing, groups, int(room * n - held), least, n, affinity)


def _experts(config: Config, settings: ReplaySettings, name: str, one: Timing) -> tuple[Timing, Affinity | None]:
    """The model with as many experts as the settings say, and how tokens choose them."""
    if not one.experts:
        _no_experts(config, settings, name)
        return one, None
    count = settings.experts or one.experts
    chosen = settings.experts_per_token or max(1, round(one.expert_share * one.experts))
    if chosen > count:
        key, other = (
            ("experts_per_token", "experts") if settings.experts_per_token else ("experts", "experts_per_token")
        )
        why = f"a token cannot choose {chosen} of {count} experts; see replay.{other}"
        raise config.error("replay", key, why)
    favoured = settings.favoured or min(count, 2 * chosen)
    if not chosen <= favoured <= count:
        why = f"a key cannot favour {favoured} experts, where a token chooses {chosen} of {count}"
        raise config.error("replay", "favoured", why)
    timing = one.with_experts(count, chosen) if (count, chosen / count) != (one.experts, one.expert_share) else one
    return timing, Affinity(count, chosen, settings.affinity, favoured, settings.affinity_seed)


def _no_experts(config: Config, settings: ReplaySettings, name: str) -> None:
    """ConfigError where a setting is about experts that a model does not have."""
    for key in ("experts", "experts_per_token", "favoured", "affinity"):
        if getattr(settings, key):
            why = f"{name} has no experts; take replay.preset=h200-qwen3-30b-a3b, or a replay.model with experts"
            raise config.error("replay", key, why)


def _span(need: Window | Chunked) -> int:
    """Tokens that a model's config gives for it: a window has the token itself, too."""
    return need.tokens + isinstance(need, Window)


def _all_full(groups: tuple[GroupSpec, ...]) -> GroupSpec:
    """All layers as one group that keeps the whole history, as a cache without windows holds them."""
    layers = sorted(layer for group in groups for layer in group.layers)
    return GroupSpec("full", Full(), sum(group.token_bytes for group in groups), tuple(layers))


def _read(config: Config, model: str) -> tuple[Path, Mapping[str, object]]:
    path = Path(model)
    try:
        path = path.expanduser()
        if path.is_dir():
            path /= CONFIG
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"{str(path)[:256]} cannot be read ({error.strerror}); give a model's {CONFIG}, or the folder that has it"
        raise config.error("replay", "model", why) from error
    except (ValueError, RecursionError) as error:
        raise config.error("replay", "model", f"{path} is no JSON ({error})") from error
    except RuntimeError as error:  # a home that nobody has
        raise config.error("replay", "model", f"{path} cannot be read ({error})") from error
    if not isinstance(fields, dict):
        raise config.error("replay", "model", f"{path} is no model's config: it holds no table of fields")
    return path, fields
