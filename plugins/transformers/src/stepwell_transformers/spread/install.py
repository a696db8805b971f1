"""A model's modules as a rank has them."""

from __future__ import annotations

from typing import Any

from torch import nn

from stepwell_kernels.collective import Group
from stepwell_transformers.spread import styles
from stepwell_transformers.spread.plan import Plan
from stepwell_transformers.spread.rows import CutLinear, GatherLinear, RowLinear, SumEmbedding, summed

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_key_value_heads", "num_kv_heads", "n_kv_heads")
"""What attention modules call their numbers of heads."""


def install(model: nn.Module, plan: Plan, group: Group) -> None:
    """Cut a model in place; what it is no more is freed, weight by weight. Works on weights that are on no device."""
    features = {name: part.out_features for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    _cut(model, plan, group)
    for name, style in plan.styles.items():
        if (module := _found(model, name)) is not None:
            _take_place(model, name, module, style, group, features.get(name, 0))
    for name in plan.heads:
        attention: Any = model.get_submodule(name)
        for count in COUNTS:
            if isinstance(heads := attention.__dict__.get(count), int):
                setattr(attention, count, heads // group.size)


def _cut(model: nn.Module, plan: Plan, group: Group) -> None:
    names: dict[int, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), name)
    same = {name: names[id(model.get_parameter(name))] for name in plan.cuts}
    parts: dict[str, nn.Parameter] = {}
    for name, cut in plan.cuts.items():
        if same[name] not in parts:
            whole = model.get_parameter(name)
            part = cut.part(whole.detach(), whole.shape, group.rank, group.size)
            parts[same[name]] = nn.Parameter(part, requires_grad=False)
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._parameters[last] = parts[same[name]]


def _found(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:  # a weight
        return None


def _take_place(model: nn.Module, name: str, module: Any, style: str, group: Group, features: int) -> None:
    if style == styles.EXPERTS:
        module.register_forward_hook(summed(group))
    elif style == styles.EMBEDDING:
        module.num_embeddings, module.padding_idx = module.weight.shape[0], None
        module.forward = SumEmbedding(module, group)
    elif style in styles.ROW:
        model.set_submodule(name, RowLinear(module.weight, module.bias, group))
    elif style in styles.SPLIT_INPUT:
        model.set_submodule(name, CutLinear(module.weight, module.bias, group))
    elif style in styles.GATHER:
        model.set_submodule(name, GatherLinear(module.weight, module.bias, group, features))
    else:
        module.out_features = module.weight.shape[0]
