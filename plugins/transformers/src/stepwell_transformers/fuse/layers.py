"""Decoder layers: the residual add and the norm after it are one operation, also from one layer to the next.

A sum is normed where it is made, for whichever norm reads it next; a layer leaves that with the sum that it hands on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepwell_kernels.collective import Group
from stepwell_kernels.fused import Norm
from stepwell_transformers.fuse.agree import SCALES, Left, all_near, noise, off
from stepwell_transformers.fuse.branch import Branch, Call, OwnBranch
from stepwell_transformers.fuse.norms import carry, normed
from stepwell_transformers.fuse.probe import Called, Probe, Trace
from stepwell_transformers.paging import Paging


class FusedLayer(ABC):
    """A decoder layer on hidden states [1, tokens, hidden]."""

    @abstractmethod
    def run(self, hidden: torch.Tensor, call: Call) -> torch.Tensor:
        """`call`: what the layer is called with by name."""


@dataclass(frozen=True, slots=True)
class Half:
    """A branch with its norms."""

    branch: Branch
    before: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True, slots=True)
class OneByOne(FusedLayer):
    """h = x + attention; h + mlp; each with a norm before it, behind it, or both."""

    first: Half
    second: Half
    following: Norm | None
    """The norm that reads this layer's sum next."""

    def run(self, hidden: torch.Tensor, call: Call) -> torch.Tensor:
        x = hidden.reshape(-1, hidden.shape[-1])
        done = x if self.first.before is None else normed(hidden, self.first.before).view(x.shape)
        done, x = _half(self.first, done, x, self.second.before, call)
        done, x = _half(self.second, done, x, self.following, call)
        total = x.view(hidden.shape)
        if self.following is not None:
            carry(total, self.following, done)
        return total


@dataclass(frozen=True, slots=True)
class Beside(FusedLayer):
    """x + attention(n) + mlp(n), where n = norm(x)."""

    norm: nn.Module
    """By its own forward: it may be no RMSNorm."""
    attention: Branch
    mlp: Branch

    def run(self, hidden: torch.Tensor, call: Call) -> torch.Tensor:
        x = hidden.reshape(-1, hidden.shape[-1])
        done = self.norm(hidden).view(x.shape)
        x = self.attention.add(done, call, residual=x)
        return self.mlp.add(done, call, residual=x).view(hidden.shape)


def _half(
    half: Half, done: torch.Tensor, x: torch.Tensor, following: Norm | None, call: Call
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a half of `done`, the stream `x` normed for it; answers (the following norm of the sum, the sum)."""
    if following is not None:
        return half.branch.add_norm(done, call, x, following, half.after)
    if half.after is None:
        total = half.branch.add(done, call, x)
    else:
        _, total = half.branch.add_norm(done, call, x, Norm(None, half.after.eps), half.after)
    return total, total


def fuse_layer(
    module: nn.Module,
    trace: Trace,
    probe: Probe,
    norms: Mapping[nn.Module, Norm],
    branches: Mapping[nn.Module, Branch],
    group: Group,
) -> FusedLayer | Left:
    """The twin of a decoder layer, or why there is none."""
    call = trace.calls[module]
    if len(call.args) > 1 or not isinstance(call.answer, torch.Tensor) or "paging" not in call.more:
        return Left("it is called, or answers, in a way of its own")
    twin = _arranged(module, trace, norms, branches)
    if isinstance(twin, Left):
        return twin
    distance = _off(module, twin, call, probe)
    return twin if all_near(distance, call.answer.dtype, group) else Left("it answers otherwise", distance)


def _arranged(
    module: nn.Module, trace: Trace, norms: Mapping[nn.Module, Norm], branches: Mapping[nn.Module, Branch]
) -> FusedLayer | Left:
    """A layer's parts in the order in which it calls them: N a norm, A attention, M anything else."""
    own = {child for child in module.children() if not isinstance(child, nn.Dropout | nn.Identity)}
    parts = [child for child in trace.calls if child in own]
    kinds = "".join("A" if part in trace.asks else "N" if _is_norm(part, norms) else "M" for part in parts)
    if kinds == "NAM":
        return Beside(parts[0], *(_branch(part, trace, branches) for part in parts[1:]))
    if kinds not in ("NANM", "NANNMN", "ANMN"):
        return Left(f"its parts are {kinds}")
    if any(part not in norms for part, kind in zip(parts, kinds, strict=True) if kind == "N"):
        return Left("its norms are no RMSNorms")
    sides: tuple[tuple[Norm | None, Norm | None], tuple[Norm | None, Norm | None]]
    following = _following(module, trace, norms)
    match kinds:
        case "NANM":
            n1, attention, n2, mlp = parts
            sides = (norms[n1], None), (norms[n2], None)
        case "ANMN":
            attention, n1, mlp, n2 = parts
            sides = (None, norms[n1]), (None, norms[n2])
        case _:
            n1, attention, n2, n3, mlp, n4 = parts
            sides = (norms[n1], norms[n2]), (norms[n3], norms[n4])
    first, second = (
        Half(_branch(part, trace, branches), *side) for part, side in zip((attention, mlp), sides, strict=True)
    )
    return OneByOne(first, second, following)


def _is_norm(module: nn.Module, norms: Mapping[nn.Module, Norm]) -> bool:
    return module in norms or "norm" in type(module).__name__.lower()


def _branch(module: nn.Module, trace: Trace, branches: Mapping[nn.Module, Branch]) -> Branch:
    found = branches.get(module)
    return OwnBranch(module, list(trace.calls[module].more)) if found is None else found


def _following(module: nn.Module, trace: Trace, norms: Mapping[nn.Module, Norm]) -> Norm | None:
    """The norm that was called with this layer's very answer."""
    answer = trace.calls[module].answer
    readers = (norm for norm in norms if (call := trace.calls.get(norm)) and call.args and call.args[0] is answer)
    reader = next(readers, None)
    return None if reader is None else norms[reader]


def _off(module: nn.Module, twin: FusedLayer, call: Called, probe: Probe) -> float:
    """How far the twin is off on random inputs, and what it leaves for the next norm."""
    hidden: torch.Tensor = call.args[0] if call.args else call.more["hidden_states"]
    more = {name: value for name, value in call.more.items() if name != "hidden_states"}
    worst = 0.0
    for scale in SCALES:
        x = noise(tuple(hidden.shape), scale, hidden)
        want = module(x, **more)
        probe.expected = probe.last()
        got = twin.run(x, more)
        worst = max(worst, off(got, want))
        if isinstance(twin, OneByOne) and (norm := twin.following) is not None:
            worst = max(worst, off(normed(got, norm), normed(want, norm)))
        probe.expected = None
        probe.asks.clear()
    return worst


def forward(own: Callable[..., Any], twin: FusedLayer) -> Callable[..., Any]:
    """A forward of the layer: its twin through pages, its own code otherwise."""

    def run(hidden_states: torch.Tensor, *args: Any, **more: Any) -> Any:
        if args or not isinstance(more.get("paging"), Paging):
            return own(hidden_states, *args, **more)
        return twin.run(hidden_states, more)

    return run
