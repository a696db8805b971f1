"""What the attention layers of a model need and what they keep, read from its Hugging Face config.

One reading for all: a runner forms its groups with it, `stepwell plan` and `stepwell replay --model` count with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from stepwell.errors import ConfigError
from stepwell.types import Chunked, Full, GroupSpec, Need, Window

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of K and V as a model's dtype stores them; a dtype of quantised weights keeps K and V in bfloat16."""
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer: the history it needs, and what a token of it takes."""

    need: Need
    kv_heads: int
    """1 where the layer keeps a latent."""
    key_dim: int
    value_dim: int
    """0 where the layer keeps a latent: it is in `key_dim`."""

    @property
    def items(self) -> int:
        """Numbers kept a token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention of a model."""

    kind: str
    """`model_type` of the config."""
    layers: tuple[LayerShape, ...]
    context: int
    item_bytes: int
    """Of a number of K or V in the model's own dtype."""

    def groups(self, item_bytes: int | None = None) -> tuple[GroupSpec, ...]:
        """Layers that need the same history, together; full attention first, then by the least history.

        `item_bytes`: of a number of K or V, where pages hold another dtype than the model's.
        """
        alike: dict[Need, list[int]] = defaultdict(list)
        for number, layer in enumerate(self.layers):
            alike[layer.need].append(number)
        needs = sorted(alike, key=_order)
        names = _names(needs)
        size = item_bytes or self.item_bytes
        return tuple(
            GroupSpec(names[need], need, size * sum(self.layers[at].items for at in alike[need]), tuple(alike[need]))
            for need in needs
        )


def read_shape(config: Fields) -> ModelShape:
    """What a model's `config.json`, or a config's `to_dict()`, says of its attention.

    Of a model for text and images the text's part counts. Raises ConfigError that names what is missing or what kind of
    layer keeps something other than K and V.
    """
    inner = config.get("text_config")
    text: Fields = {**config, **inner} if isinstance(inner, Mapping) else config
    count = _whole(text, "num_hidden_layers")
    needs = _needs(text, count)
    layers = tuple(_layer(text, need) for need in needs)
    context = _optional(text, "max_position_embeddings") or 0
    return ModelShape(str(text.get("model_type", "")), layers, context, _item_bytes(text))


# --- what each layer needs -------------------------------------------------------------------------------------------


def _needs(text: Fields, count: int) -> list[Need]:
    kinds = _kinds(text, count)
    window, chunk = _window(text), _optional(text, "attention_chunk_size")
    found: list[Need] = []
    for number, kind in enumerate(kinds):
        if kind == FULL:
            found.append(Full())
        elif kind == SLIDING and window:
            found.append(Window(window - 1))
        elif kind == CHUNKED and chunk:
            found.append(Chunked(chunk))
        elif kind in (SLIDING, CHUNKED):
            raise ConfigError(f"layer {number} has {kind}, but the config does not say how far it sees")
        else:
            raise ConfigError(f"layer {number} is a layer of {kind}, which keeps no K and V; it is not supported yet")
    return found


def _kinds(text: Fields, count: int) -> list[str]:
    """`layer_types` where the config has them; else as configs said it before there were any."""
    listed = text.get("layer_types")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        if len(listed) < count:
            raise ConfigError(f"layer_types has {len(listed)} layers, and num_hidden_layers is {count}")
        return [str(kind) for kind in listed[:count]]
    kind = str(text.get("model_type", ""))
    for name, say in OLDER.items():
        if name in text or name == kind:
            return say(text, count)
    return [SLIDING if _slides(text) else FULL] * count


def _slides(text: Fields) -> bool:
    return bool(_window(text)) and text.get("use_sliding_window", True) is not False


def _window(text: Fields) -> int | None:
    return _optional(text, "sliding_window") or _optional(text, "sliding_window_size")


def _by_pattern(text: Fields, count: int) -> list[str]:
    """Every n-th layer is full, or a word of L and G says it."""
    pattern = text.get("sliding_window_pattern")
    if not _window(text) or pattern is None:
        return [FULL] * count
    if isinstance(pattern, str):
        return list(islice(cycle([SLIDING if letter == "L" else FULL for letter in pattern]), count))
    every = _whole(text, "sliding_window_pattern")
    return [FULL if (number + 1) % every == 0 else SLIDING for number in range(count)]


def _by_flags(text: Fields, count: int) -> list[str]:
    """1 is a window, 0 full attention."""
    flags = text["hybrid_layer_pattern"]
    if not isinstance(flags, Sequence) or len(flags) < count:
        raise ConfigError(f"hybrid_layer_pattern does not say it of all {count} layers")
    return [SLIDING if flag else FULL for flag in flags[:count]]


def _by_depth(text: Fields, count: int) -> list[str]:
    """The first layers are full."""
    first = _whole(text, "max_window_layers")
    return [SLIDING if _slides(text) and number >= first else FULL for number in range(count)]


def _alternating(text: Fields, count: int) -> list[str]:
    return [FULL if number % 2 or not _window(text) else SLIDING for number in range(count)]


def _five_to_one(text: Fields, count: int) -> list[str]:
    return _by_pattern({"sliding_window_pattern": 6, **text}, count)


def _three_to_one(text: Fields, count: int) -> list[str]:
    return _by_pattern({"sliding_window_pattern": 4, **text}, count)


def _by_rope(text: Fields, count: int) -> list[str]:
    """Layers with rotary positions see a chunk, the others everything."""
    if not _optional(text, "attention_chunk_size"):
        return [FULL] * count
    flags = text.get("no_rope_layers")
    if isinstance(flags, Sequence) and flags:
        return [CHUNKED if flag else FULL for flag in flags[:count]]
    every = _optional(text, "no_rope_layer_interval") or 4
    return [FULL if (number + 1) % every == 0 else CHUNKED for number in range(count)]


OLDER: Mapping[str, Callable[[Fields, int], list[str]]] = {
    "hybrid_layer_pattern": _by_flags,
    "sliding_window_pattern": _by_pattern,
    "max_window_layers": _by_depth,
    "gpt_oss": _alternating,
    "gemma2": _alternating,
    "gemma3": _five_to_one,
    "gemma3_text": _five_to_one,
    "cohere2": _three_to_one,
    "llama4": _by_rope,
    "llama4_text": _by_rope,
}
"""A field, or a `model_type`, that tells layers apart in configs without `layer_types`."""


# --- what each layer keeps -------------------------------------------------------------------------------------------


def _layer(text: Fields, need: Need) -> LayerShape:
    latent = _optional(text, "kv_lora_rank")
    if latent:
        return LayerShape(need, 1, latent + _whole(text, "qk_rope_head_dim"), 0)
    prefix = "" if isinstance(need, Full) else "swa_"
    heads = _whole(text, "num_attention_heads")
    kv_heads = _first_of(text, f"{prefix}num_key_value_heads", "num_key_value_heads") or heads
    key = _first_of(text, f"{prefix}head_dim", "head_dim") or _whole(text, "hidden_size") // heads
    value = _first_of(text, f"{prefix}v_head_dim", "v_head_dim") or key
    return LayerShape(need, kv_heads, key, value)


def _item_bytes(text: Fields) -> int:
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return ITEM_BYTES.get(dtype, 2)


def _first_of(text: Fields, *names: str) -> int | None:
    return next((value for name in names if (value := _optional(text, name))), None)


def _optional(text: Fields, name: str) -> int | None:
    value = text.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _whole(text: Fields, name: str) -> int:
    value = _optional(text, name)
    if value is None:
        raise ConfigError(f"the config says no {name}, or not one number for all layers")
    return value


# --- groups ----------------------------------------------------------------------------------------------------------


def _order(need: Need) -> tuple[int, int]:
    match need:
        case Full():
            return 0, 0
        case Window(tokens):
            return 1, tokens
        case Chunked(tokens):
            return 2, tokens


def _names(needs: Sequence[Need]) -> dict[Need, str]:
    """`full`, `swa`, `chunked`; with the window's size where a model has several."""
    kinds = [_kind(need) for need in needs]
    return {
        need: kind if kinds.count(kind) == 1 or isinstance(need, Full) else f"{kind}{need.tokens}"
        for need, kind in zip(needs, kinds, strict=True)
    }


def _kind(need: Need) -> str:
    match need:
        case Full():
            return "full"
        case Window():
            return "swa"
        case Chunked():
            return "chunked"
