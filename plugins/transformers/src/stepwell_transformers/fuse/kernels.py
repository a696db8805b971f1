"""A model's modules by fused operations, each proven against its own code before it takes the place of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from stepwell_kernels.fused import Norm, linear
from stepwell_transformers.apart import Report
from stepwell_transformers.fuse import attention, layers, mlp, norms
from stepwell_transformers.fuse.agree import SCALES, Left, near, noise, off
from stepwell_transformers.fuse.branch import Branch
from stepwell_transformers.fuse.fused import Forward, Fused
from stepwell_transformers.fuse.merge import plain
from stepwell_transformers.fuse.probe import Probe, Trace, positions, probing, trace


def by_kernels(model: Any, report: Report) -> Fused:
    """Fuse what is known by what it does; everything else keeps its own forward."""
    report("fusing the model's layers")
    probe = Probe(positions(int(model.config.max_position_embeddings), model.device))
    with probing(model), torch.no_grad():
        try:
            work = _Work(model, trace(model, probe), probe)
        except Exception as error:  # a model's code raises whatever its parts raise; what becomes of it is said later
            line = (str(error).strip().splitlines() or [""])[0]
            return Fused((f"nothing: the model does not run through pages ({type(error).__name__}: {line})",))
        work.norms()
        work.mlps()
        work.attentions()
        work.layers()
        work.head()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # where parts of merged weights were
    for module, forward in work.forwards:
        module.forward = forward
    return Fused(tuple(work.lines()), tuple(work.forwards))


class _Work:
    """What has been found of one model so far."""

    def __init__(self, model: Any, seen: Trace, probe: Probe) -> None:
        self._model, self._seen, self._probe = model, seen, probe
        self.forwards: list[tuple[nn.Module, Forward]] = []
        self._norms: dict[nn.Module, Norm] = {}
        self._branches: dict[nn.Module, Branch] = {}
        self._good: Counter[str] = Counter()
        self._left: dict[tuple[str, str], list[float | None]] = {}

    def norms(self) -> None:
        for module in self._all(norms.alike):
            found, distance = norms.read(module)
            if found is None:
                self._leave(module, Left("it is no RMSNorm", distance))
                continue
            self._norms[module] = found
            self._take(module, _norm_forward(module.forward, found))

    def mlps(self) -> None:
        for module in self._all(mlp.alike):
            found = mlp.fuse_mlp(module)
            if isinstance(found, Left):
                self._leave(module, found)
                continue
            self._branches[module] = found
            self._take(module, _mlp_forward(module.forward, found))

    def attentions(self) -> None:
        for module, ask in self._seen.asks.items():
            if not self._own(module):
                continue
            found = attention.fuse_attention(module, ask, self._seen.calls[module], self._probe, self._norms)
            if isinstance(found, Left):
                self._leave(module, found)
                continue
            self._branches[module] = found
            self._take(module, attention.forward(module.forward, found))

    def layers(self) -> None:
        parents = [module for module in self._model.modules() if set(module.children()) & set(self._seen.asks)]
        for module in parents:
            if not self._own(module):
                continue
            found = layers.fuse_layer(module, self._seen, self._probe, self._norms, self._branches)
            if isinstance(found, Left):
                self._leave(module, found)
                continue
            self._take(module, layers.forward(module.forward, found))

    def head(self) -> None:
        """The product that makes logits, of few rows as a rule."""
        head = self._model.get_output_embeddings()
        if not plain(head):
            return
        assert isinstance(head, nn.Linear)
        inputs = [noise((4, head.in_features), scale, head.weight) for scale in SCALES]
        distance = max(off(linear(x, head.weight, head.bias), head(x)) for x in inputs)
        if not near(distance, head.weight.dtype):
            self._leave(head, Left("it answers otherwise", distance))
            return
        self._take(head, lambda x: linear(x, head.weight, head.bias))

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
        self._leave(module, Left("its forward was replaced, or has hooks"))
        return False

    def _take(self, module: nn.Module, forward: Forward) -> None:
        self._good[type(module).__name__] += 1
        self.forwards.append((module, forward))

    def _leave(self, module: nn.Module, left: Left) -> None:
        self._left.setdefault((type(module).__name__, left.why), []).append(left.off)


def _norm_forward(own: Forward, norm: Norm) -> Forward:
    def run(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        return own(x, *args, **more) if args or more else norms.normed(x, norm)

    return run


def _mlp_forward(own: Forward, twin: Branch) -> Forward:
    def run(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        return own(x, *args, **more) if args or more else twin.add(x, {})

    return run
