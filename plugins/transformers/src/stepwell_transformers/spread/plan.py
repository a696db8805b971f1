"""What of a model is cut, and how: its library's plan, as far as the sizes of this model allow it.

What belongs together (the projections of an attention, the halves of an MLP, the weights of experts) is cut together or
stays whole on every rank, so that whatever does not come out even costs memory and time, and never an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stepwell.models import LayerShape
from stepwell_transformers.spread import styles
from stepwell_transformers.spread.cut import Cut, Taking
from stepwell_transformers.spread.styles import cut_of

KV = {"q_proj", "k_proj", "v_proj"}
LATENT = ({"q_b_proj", "kv_b_proj", "o_proj"}, {"q_proj", "kv_b_proj", "o_proj"})
"""Of latent attention: what is made of latents for each head, and what takes the heads' answers."""
FUSED_KV = "query_key_value"
"""K and V of a head beside its query, where there are as many of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank of `size` does about each module and weight that is cut, by name."""

    size: int
    styles: Mapping[str, str]
    cuts: Mapping[str, Taking]
    """By weight; one that several modules share is there once for each."""
    heads: frozenset[str]
    """Attention modules that have some of the heads."""
    whole: frozenset[int]
    """Layers whose K and V every rank has."""
    left: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Why parts stayed whole, and which."""

    @property
    def cuts_layers(self) -> bool:
        """Whether anything but embedding and head is cut."""
        return any(_numbered(name) for name in self.cuts)

    def lines(self) -> Iterator[str]:
        """What became of the model, for people."""
        for why, names in self.left.items():
            kinds = Counter(pattern(name) for name in names)
            for kind, count in kinds.items():
                yield f"{kind} ({count}) stays whole on each of {self.size} ranks: {why}"
        if self.whole:
            yield f"{len(self.whole)} layers keep the same in pages on each of {self.size} ranks"


def plan(
    model: nn.Module,
    size: int,
    layers: Sequence[LayerShape],
    groups: Sequence[Sequence[int]],
    apart: Mapping[str, Taking] | None = None,
) -> Plan:
    """`layers` and `groups`: what each layer keeps, and which share pools, so that they have the same heads.

    `apart`: weights that ranks come to in another way, whatever the library's plan says of what they belong to.
    """
    return _Planning(model, size, layers, apart or {}).plan(groups)


def pattern(name: str) -> str:
    """A name as plans have it, numbers being any."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbered(name: str) -> bool:
    return any(part.isdecimal() for part in name.split("."))


class _Planning:
    def __init__(self, model: nn.Module, size: int, layers: Sequence[LayerShape], apart: Mapping[str, Taking]) -> None:
        self._size, self._layers, self._apart = size, layers, apart
        self._modules = dict(model.named_modules())
        self._weights = dict(model.named_parameters(remove_duplicate=False))
        self._attentions = {name: at for name, part in self._modules.items() if (at := _layer(name, part)) is not None}
        self._owners = self._asked(model)
        self._left: dict[str, list[str]] = defaultdict(list)

    def plan(self, groups: Sequence[Sequence[int]]) -> Plan:
        for owner in list(self._owners):
            if (why := self._unfit(owner)) is not None:
                self._keep_whole(owner, why)
        self._agree_on_shared()
        cut = {at: name for name, at in self._attentions.items() if self._owners.get(name)}
        for group in groups:
            if not all(self._keeps_heads(cut[at]) for at in group if at in cut) or not cut.keys() >= set(group):
                for at in group:
                    if at in cut and self._keeps_heads(cut[at]):
                        self._keep_whole(cut.pop(at), "other layers of its group cannot be cut by heads")
        heads = {name for name in cut.values() if self._by_heads(name)}
        split = {at for at, name in cut.items() if self._keeps_heads(name)}
        return Plan(
            self._size,
            {name: style for entries in self._owners.values() for name, style in entries.items()},
            {**dict(self._cuts()), **self._apart},
            frozenset(heads),
            frozenset(range(len(self._layers))) - split,
            self._left,
        )

    def _asked(self, model: Any) -> dict[str, dict[str, str]]:
        """The styles that this model's plan gives to modules and weights, by what they belong to."""
        said = {**(getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {})}
        said |= styles.LEFT_OUT.get(str(getattr(model.config, "model_type", "")), {})
        owners: dict[str, dict[str, str]] = defaultdict(dict)
        for name in (*self._modules, *self._weights):
            style = said.get(pattern(name))
            if style is not None and style not in styles.SAME:
                owners[name if style == styles.EXPERTS else name.rpartition(".")[0]][name] = style
        for name, module in self._modules.items():
            if (parts := _latent(module)) is not None:
                owners[name] = {f"{name}.{part}": "rowwise" if part == "o_proj" else "colwise" for part in parts}
        for owner in {name.rpartition(".")[0] for name in self._apart}:
            owners.pop(owner, None)
        self._tie(model, owners)
        return owners

    def _tie(self, model: Any, owners: dict[str, dict[str, str]]) -> None:
        """An embedding that is the head as well is cut where that is."""
        names = {id(module): name for name, module in self._modules.items()}
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if head is None or embedding is None or head.weight is not embedding.weight:
            return
        one, other = names[id(head)], names[id(embedding)]
        if owners.get(one.rpartition(".")[0], {}).get(one) in styles.GATHER:
            owners[other.rpartition(".")[0]].setdefault(other, styles.EMBEDDING)

    def _keep_whole(self, owner: str, why: str) -> None:
        self._owners.pop(owner)
        self._left[why].append(owner)

    # --- what does not come out even -----------------------------------------------------------------------------

    def _unfit(self, owner: str) -> str | None:
        entries = self._owners[owner]
        asked = set(entries.values())
        if unknown := asked - styles.KNOWN:
            return f"its plan asks for {', '.join(sorted(unknown))}"
        for name, style in entries.items():
            module = self._modules.get(name)
            if module is not None and style != styles.EXPERTS and not _cuttable(module, style):
                return f"{name.rpartition('.')[2]} is a {type(module).__name__}"
        for name, cut in self._cuts_of(entries):
            if not cut.even(self._weights[name].shape, self._size):
                return (
                    f"{self._weights[name].shape[cut.dim]} of {name.rpartition('.')[2]} cannot be cut into {self._size}"
                )
        if styles.EXPERTS not in asked and bool(asked & styles.COLUMN) != bool(asked & styles.ROW):
            return "its plan cuts what goes in or what comes out, and not both"
        if styles.EXPERTS not in asked and any(
            name in self._weights for name, style in entries.items() if style in styles.ROW
        ):
            return "nothing sums what its weights make"
        return self._unfit_heads(owner) if owner in self._attentions else None

    def _unfit_heads(self, owner: str) -> str | None:
        if not self._by_heads(owner):
            return None
        names = {name.rpartition(".")[2] for name, style in self._owners[owner].items() if style in styles.COLUMN}
        if (at := self._attentions[owner]) >= len(self._layers):
            return "it keeps no K and V of its own"
        layer, heads = self._layers[at], self._heads(owner)
        if "kv_b_proj" in names:
            return None if heads % self._size == 0 else f"{heads} heads cannot be cut into {self._size}"
        if not (names >= KV or (FUSED_KV in names and layer.kv_heads == heads)):
            return "its projections are others"
        for count, kind in ((heads, "heads"), (layer.kv_heads, "KV heads")):
            if count % self._size:
                return f"{count} {kind} cannot be cut into {self._size}"
        return None

    def _heads(self, owner: str) -> int:
        """How many an attention has, by its output's features."""
        out = next(name for name, style in self._owners[owner].items() if style in styles.ROW)
        latent = self._modules[owner].__dict__.get("v_head_dim", 1)
        value = self._layers[self._attentions[owner]].value_dim or int(latent)
        return int(self._weights[f"{out}.weight"].shape[1]) // value

    def _by_heads(self, owner: str) -> bool:
        """Whether each rank has some heads of an attention; else all of them have all."""
        return bool(set(self._owners[owner].values()) & styles.COLUMN)

    def _keeps_heads(self, owner: str) -> bool:
        """Whether each rank keeps K and V of its own heads."""
        return self._by_heads(owner) and f"{owner}.kv_b_proj" not in self._owners[owner]

    # --- weights -------------------------------------------------------------------------------------------------

    def _cuts(self) -> Iterator[tuple[str, Cut]]:
        for entries in self._owners.values():
            yield from self._cuts_of(entries)

    def _cuts_of(self, entries: Mapping[str, str]) -> Iterator[tuple[str, Cut]]:
        for name, style in entries.items():
            own = [name] if name in self._weights else [f"{name}.{part}" for part in ("weight", "bias")]
            for weight in own:
                if weight in self._weights:
                    cut = cut_of(style, weight.rpartition(".")[2], self._weights[weight].dim())
                    if cut is not None:
                        yield weight, cut

    def _agree_on_shared(self) -> None:
        """A weight that several modules share is cut alike for all of them, or for none."""
        sharing: dict[int, list[str]] = defaultdict(list)
        for name, weight in self._weights.items():
            sharing[id(weight)].append(name)
        cuts = dict(self._cuts())
        for names in sharing.values():
            if len({cuts.get(name) for name in names}) > 1:
                for owner in [
                    owner
                    for owner, entries in self._owners.items()
                    if {w for w, _ in self._cuts_of(entries)} & set(names)
                ]:
                    self._keep_whole(owner, "it shares a weight with what is not cut alike")


def _layer(name: str, module: nn.Module) -> int | None:
    """The number of the layer whose attention a module is."""
    found = getattr(module, "layer_idx", None)
    is_attention = "att" in name.rpartition(".")[2] and any(isinstance(part, nn.Linear) for part in module.children())
    return found if is_attention and isinstance(found, int) else None


def _latent(module: nn.Module) -> set[str] | None:
    """The parts of a latent attention that are cut by heads; None: it is none."""
    linears = {name for name, part in module.named_children() if isinstance(part, nn.Linear)}
    return next((parts for parts in LATENT if parts <= linears), None)


def _cuttable(module: nn.Module, style: str) -> bool:
    """Whether a module is of the kind that a style is for, and nothing but its weights."""
    if style == styles.EMBEDDING:
        return isinstance(module, nn.Embedding)
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
