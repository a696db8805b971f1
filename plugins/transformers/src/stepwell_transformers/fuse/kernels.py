"""A model's modules by fused operations, each proven against its own code before it takes the place of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from stepwell_kernels.collective import Group
from stepwell_kernels.fused import Norm, linear
from stepwell_transformers.apart import Report
from stepwell_transformers.fuse import attention, layers, mlp, norms, turns
from stepwell_transformers.fuse.agree import SCALES, Left, all_near, noise, off
from stepwell_transformers.fuse.branch import Branch
from stepwell_transformers.fuse.fused import Forward, Fused
from stepwell_transformers.fuse.merge import plain
from stepwell_transformers.fuse.probe import Probe, Trace, positions, probing, trace
from stepwell_transformers.spread.rows import GatherLinear

Kind = TypeVar("Kind", bound=nn.Module)
Found = TypeVar("Found")


def by_kernels(model: Any, report: Report, group: Group) -> Fused:
    """Fuse what is known by what it does; everything else keeps its own forward."""
    report("fusing the model's layers")
    probe = Probe(positions(int(model.config.max_position_embeddings), model.device))
    with probing(model), torch.no_grad():
        try:
            work = _Work(model, trace(model, probe), probe, group)
        except Exception as error:  # a model's code raises whatever its parts raise; what becomes of it is said later
            return Fused((f"nothing: the model does not run through pages ({_line(error)})",))
        work.fuse_turns()
        work.fuse_norms()
        work.fuse_mlps()
        work.fuse_attentions()
        work.fuse_layers()
        work.fuse_head()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # where parts of merged weights were
    for module, forward in work.forwards:
        module.forward = forward
    return Fused(tuple(work.lines()), tuple(work.forwards))


class _Work:
    """What has been found of one model so far."""

    def __init__(self, model: Any, seen: Trace, probe: Probe, group: Group) -> None:
        self._model, self._seen, self._probe, self._group = model, seen, probe, group
        self.forwards: list[tuple[nn.Module, Forward]] = []
        self._norms: dict[nn.Module, Norm] = {}
        self._branches: dict[nn.Module, Branch] = {}
        self._good: Counter[str] = Counter()
        self._left: dict[tuple[str, str], list[float | None]] = {}

    def fuse_turns(self) -> None:
        calls, context = self._seen.calls, int(self._model.config.max_position_embeddings)
        for module in self._all(lambda module: turns.alike(module, calls)):
            if (found := self._proven(module, lambda module: turns.read(module, calls[module], context))) is not None:
                self._take(module, turns.forward(module.forward, found))

    def fuse_norms(self) -> None:
        for module in self._all(norms.alike):
            if (found := self._proven(module, norms.read)) is not None:
                self._norms[module] = found
                self._take(module, _norm_forward(module.forward, found))

    def fuse_mlps(self) -> None:
        for module in self._all(mlp.alike):
            if (found := self._proven(module, lambda module: mlp.fuse_mlp(module, self._group))) is not None:
                self._branches[module] = found
                self._take(module, _mlp_forward(module.forward, found))

    def fuse_attentions(self) -> None:
        for module in self._all(lambda module: module in self._seen.asks):
            if (found := self._proven(module, self._attention)) is not None:
                self._branches[module] = found
                self._take(module, attention.forward(module.forward, found))

    def fuse_layers(self) -> None:
        for module in self._all(lambda module: not set(self._seen.asks).isdisjoint(module.children())):
            if (found := self._proven(module, self._layer)) is not None:
                self._take(module, layers.forward(module.forward, found))

    def fuse_head(self) -> None:
        """The product that makes logits, of few rows as a rule."""
        head: nn.Linear | None = self._model.get_output_embeddings()
        if head is None or not plain(head, GatherLinear):
            return
        if (found := self._proven(head, lambda head: _head(head, self._group))) is not None:
            self._take(head, found)

    def lines(self) -> Iterator[str]:
        """What was fused, and what was left and why."""
        for kind, count in self._good.items():
            yield f"{count} {kind} fused"
        for (kind, why), offs in self._left.items():
            known = [off for off in offs if off is not None]
            yield f"{len(offs)} {kind} left: {why}" + (f" (off by {min(known):.2g} or more)" if known else "")

    def _all(self, alike: Callable[[nn.Module], bool]) -> list[nn.Module]:
        return [module for module in self._model.modules() if alike(module) and self._own(module)]

    def _own(self, module: nn.Module) -> bool:
        """Whether a module runs its class's forward and nothing else; one that does not is left."""
        if "forward" not in module.__dict__ and not module._forward_hooks and not module._forward_pre_hooks:
            return True
        self._proven(module, lambda _: Left("its forward was replaced, or has hooks"))
        return False

    def _attention(self, module: nn.Module) -> attention.FusedAttention | Left:
        ask, call = self._seen.asks[module], self._seen.calls[module]
        return attention.fuse_attention(module, ask, call, self._probe, self._norms, self._group)

    def _layer(self, module: nn.Module) -> layers.FusedLayer | Left:
        return layers.fuse_layer(module, self._seen, self._probe, self._norms, self._branches, self._group)

    def _proven(self, module: Kind, make: Callable[[Kind], Found | Left]) -> Found | None:
        """What a module's twin is; where there is none, that is noted."""
        try:
            found = make(module)
        except Exception as error:  # a twin that is not one may fail in any way
            found = Left(f"its twin fails ({_line(error)})")
        if isinstance(found, Left):
            self._left.setdefault((type(module).__name__, found.why), []).append(found.off)
            return None
        return found

    def _take(self, module: nn.Module, forward: Forward) -> None:
        self._good[type(module).__name__] += 1
        self.forwards.append((module, forward))


def _head(head: nn.Linear, group: Group) -> Forward | Left:
    def run(x: torch.Tensor) -> torch.Tensor:
        if isinstance(head, GatherLinear):
            return head.gathered(x, linear)
        return linear(x, head.weight, head.bias)

    inputs = [noise((4, head.in_features), scale, head.weight) for scale in SCALES]
    distance = max(off(run(x), head(x)) for x in inputs)
    return run if all_near(distance, head.weight.dtype, group) else Left("it answers otherwise", distance)


def _norm_forward(own: Forward, norm: Norm) -> Forward:
    def run(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        return own(x, *args, **more) if args or more else norms.normed(x, norm)

    return run


def _mlp_forward(own: Forward, twin: Branch) -> Forward:
    def run(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        return own(x, *args, **more) if args or more else twin.add(x, {})

    return run


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
