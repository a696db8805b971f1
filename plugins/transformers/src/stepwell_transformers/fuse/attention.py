"""Attention modules: one product for Q, K and V, then one operation that norms, turns and writes them into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepwell import Window
from stepwell_kernels.collective import Group
from stepwell_kernels.fused import Norm, linear, project_and_write, rms_norm, rotate, rotate_and_write
from stepwell_transformers.fuse.agree import SCALES, Left, all_near, noise, off
from stepwell_transformers.fuse.branch import Call, FusedBranch
from stepwell_transformers.fuse.merge import Merged, merge, plain
from stepwell_transformers.fuse.probe import Ask, Called, Probe
from stepwell_transformers.paging import Foreign, Paging
from stepwell_transformers.spread.rows import RowLinear

PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",), ("query_key_value",), ("W_pack",))
OUTPUTS = ("o_proj", "out_proj", "dense")
NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"))
WIDE = "_stepwell_wide"
Heads = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""How a product is cut into queries, keys and values: heads and their dimensions."""
Norms = tuple[Norm | None, Norm | None]
"""Of queries and keys: per head, or over all heads."""
NO_NORMS: Norms = (None, None)


@dataclass(frozen=True, slots=True)
class Rope:
    """How a layer turns its queries and keys."""

    interleaved: bool = False
    """Whether a pair lies side by side; else half the turned dimensions apart."""
    widen: bool = False
    """Whether cosines come once a pair, not once a dimension."""


class FusedAttention(FusedBranch):
    """o(attention(rope(q(x)), rope(k(x)), v(x))), through pages."""

    def __init__(
        self,
        merged: Merged,
        output: nn.Linear,
        ask: Ask,
        rope: Rope | None,
        norms: Norms,
        factor: float,
    ) -> None:
        super().__init__(output)
        self._merged, self._rope, self._factor = merged, rope, factor
        self._heads = _heads(ask)
        dims = self._heads[0][1], self._heads[1][1]
        per_head = all(
            norm is None or norm.weight is None or len(norm.weight) == dim
            for norm, dim in zip(norms, dims, strict=True)
        )
        self._norms, self._wide_norms = (norms, NO_NORMS) if per_head else (NO_NORMS, norms)
        self._layer, self._scale, self._sinks, self._softcap = ask.layer, ask.scale, ask.sinks, ask.softcap
        self._window = None if ask.window is None else Window(ask.window - 1)

    def inner(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        paging: Paging = call["paging"]
        if self._window is not None and (need := paging.need(self._layer)) != self._window:
            window = self._window.tokens + 1
            raise Foreign(f"sliding_window = {window} in layer {self._layer}, where its config says {need}")
        paging.ready(self._layer)
        q = self._write(x, call.get("position_embeddings"), paging)
        return paging.attend(self._layer, q, self._scale, self._sinks, self._softcap).reshape(x.shape[0], -1)

    def _write(self, x: torch.Tensor, turns: Any, paging: Paging) -> torch.Tensor:
        """Write K and V of `x` into pages; answers q."""
        if self._rope is None:
            q, k, v = self._project(x)
            q, k = (_normed(part, norm) for part, norm in zip((q, k), self._norms, strict=True))
            paging.write(self._layer, k, v)
            return q
        cos, sin = (_wide(part, self._rope)[0] for part in turns)
        place, weight, bias = paging.place(self._layer), self._merged.weight, self._merged.bias
        turned = self._rope.interleaved
        if place is None:
            q, k, v = self._project(x)
            q, k = rotate(q, k, cos, sin, *self._norms, interleaved=turned)
            paging.write(self._layer, k, v)
            return q
        if self._factor == 1 and self._wide_norms == NO_NORMS:
            return project_and_write(x, weight, bias, self._heads, cos, sin, place, *self._norms, interleaved=turned)
        return rotate_and_write(*self._project(x), cos, sin, place, *self._norms, interleaved=turned)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v, [tokens, heads, dim] each."""
        product = linear(x, self._merged.weight, self._merged.bias)
        q, k, v = torch.split(product, _sizes(self._heads), dim=-1)
        q, k = (_normed(part, norm) for part, norm in zip((q, k), self._wide_norms, strict=True))
        v = v if self._factor == 1 else v * self._factor
        q, k, v = (part.view(-1, *shape) for part, shape in zip((q, k, v), self._heads, strict=True))
        return q, k, v


def _normed(x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    return x if norm is None else rms_norm(x.contiguous(), norm.weight, norm.eps, norm.offset, norm.late)


def _wide(turns: torch.Tensor, rope: Rope) -> torch.Tensor:
    """One factor a dimension; made once a forward, since all layers are handed the same tensor."""
    if not rope.widen:
        return turns
    found: torch.Tensor | None = getattr(turns, WIDE, None)
    if found is None:
        found = turns.repeat_interleave(2, -1) if rope.interleaved else torch.cat((turns, turns), -1)
        setattr(turns, WIDE, found)
    return found


def _heads(ask: Ask) -> Heads:
    query, keys, values = ((part.shape[1], part.shape[2]) for part in (ask.query, ask.keys, ask.values))
    return query, keys, values


def _sizes(heads: Heads) -> list[int]:
    return [count * dim for count, dim in heads]


def fuse_attention(
    module: nn.Module, ask: Ask, call: Called, probe: Probe, norms: Mapping[nn.Module, Norm], group: Group
) -> FusedAttention | Left:
    """The twin of an attention module that asked so when called so, or why there is none."""
    if call.args or "hidden_states" not in call.more:
        return Left("it is called in a way of its own")
    if ask.foreign:
        return Left(f"it hands {ask.foreign[0]} to its attention")
    if ask.sinks is not None and all(ask.sinks is not weight for weight in module.parameters()):
        return Left("its sinks are computed")
    found = _linears(module)
    if found is None:
        return Left("its projections are others")
    projections, output = found
    merged = merge(projections)
    if merged is None or merged.weight.shape[0] != sum(_sizes(_heads(ask))):
        return Left("its projections cannot be merged")
    worst = float("inf")
    for twin in _twins(module, merged, output, ask, call, norms):
        distance = _off(module, twin, ask, call, probe)
        if all_near(distance, merged.weight.dtype, group):
            return twin
        worst = min(worst, distance)
    return Left("it asks or answers otherwise", worst)


def _linears(module: nn.Module) -> tuple[list[nn.Linear], nn.Linear] | None:
    children = dict(module.named_children())
    output = next((children[name] for name in OUTPUTS if plain(children.get(name), RowLinear)), None)
    for names in PROJECTIONS:
        parts = [part for name in names if isinstance(part := children.get(name), nn.Linear)]
        if len(parts) == len(names) and isinstance(output, nn.Linear):
            return parts, output
    return None


def _twins(
    module: nn.Module, merged: Merged, output: nn.Linear, ask: Ask, call: Called, norms: Mapping[nn.Module, Norm]
) -> Iterator[FusedAttention]:
    """All that it may be."""
    children = dict(module.named_children())
    pairs = [(children[q], children[k]) for q, k in NORMS if q in children and k in children]
    sides = [(norms.get(q), norms.get(k)) for q, k in pairs] or [NO_NORMS]
    factor = _factor(merged, ask, call.more["hidden_states"])
    for both in sides:
        for rope in _ropes(call.more.get("position_embeddings"), ask.query.shape[2]):
            yield FusedAttention(merged, output, ask, rope, both, factor)


def _factor(merged: Merged, ask: Ask, hidden: torch.Tensor) -> float:
    """What a layer multiplies its values by."""
    size = ask.values[0].numel()
    bias = None if merged.bias is None else merged.bias[-size:]
    plain_values = linear(hidden[0], merged.weight[-size:], bias).float().flatten()
    own = ask.values.float().flatten()
    factor = round(float(own @ plain_values / (plain_values @ plain_values).clamp(min=1e-20)), 3)
    return factor if abs(factor - 1) > 0.01 else 1.0


def _ropes(turns: Any, dim: int) -> list[Rope | None]:
    if not (isinstance(turns, tuple) and len(turns) == 2 and all(isinstance(part, torch.Tensor) for part in turns)):
        return [None]
    found: list[Rope | None] = [Rope(), Rope(interleaved=True)]
    if 2 * turns[0].shape[-1] <= dim:
        found += [Rope(widen=True), Rope(interleaved=True, widen=True)]
    return [*found, None]


def _off(module: nn.Module, twin: FusedAttention, ask: Ask, call: Called, probe: Probe) -> float:
    """How far the twin is off on random inputs: in what it asks of attention, and in what it makes of the answer."""
    hidden = call.more["hidden_states"]
    worst = 0.0
    for scale in SCALES:
        x = noise(tuple(hidden.shape), scale, hidden)
        want = module(**{**call.more, "hidden_states": x})[0]
        own = probe.last()
        assert own is not None
        probe.expected = own
        got = twin.add(x[0], call.more)
        mine, probe.expected = probe.last(), None
        assert mine is not None
        if (own.scale, own.softcap, own.window) != (ask.scale, ask.softcap, ask.window) or own.sinks is not ask.sinks:
            return float("inf")
        parts = ((mine.query, own.query), (mine.keys, own.keys), (mine.values, own.values), (got, want[0]))
        worst = max(worst, *(off(a, b) for a, b in parts))
    return worst


def forward(own: Callable[..., Any], twin: FusedAttention) -> Callable[..., Any]:
    """A forward of the module: its twin through pages, its own code otherwise."""

    def run(*args: Any, **more: Any) -> Any:
        hidden = more.get("hidden_states")
        if args or hidden is None or not isinstance(more.get("paging"), Paging):
            return own(*args, **more)
        return twin.add(hidden.reshape(-1, hidden.shape[-1]), more).view(hidden.shape), None

    return run
