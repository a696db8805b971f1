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
MOST, DEEPEST = 2**40, 2**16
"""What no number of a config reaches, nor its number of layers: it is a mistake, and would take for ever to count."""
INNER = ("text_config", "language_config", "llm_config")
"""Where a model for text and images says what its text part is."""

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
    text = text_of(config)
    count = _whole(text, "num_hidden_layers")
    if count > DEEPEST:
        raise ConfigError(f"the config's num_hidden_layers is {count}, more than can be meant")
    context = positive(text, "max_position_embeddings") or 0
    layers = []
    for number, kind in enumerate(_kinds(text, count)[: count - (positive(text, "num_kv_shared_layers") or 0)]):
        own = _own(text, number, kind)
        layers.append(_layer(own, _need(own, number, kind, context)))
    if not layers:
        raise ConfigError("no layer of the model keeps K and V of its own")
    return ModelShape(str(text.get("model_type", "")), tuple(layers), context, _item_bytes(text))


def text_of(config: Fields) -> Fields:
    """What a config says of the model's text part, with what its family leaves out."""
    inner = next((part for name in INNER if isinstance(part := config.get(name), Mapping)), {})
    said: Fields = {**config, **inner}
    return {**LEFT_OUT.get(_family(said), {}), **said}


def _family(text: Fields) -> str:
    return str(text.get("model_type", "")).removesuffix("_text")


def _own(text: Fields, number: int, kind: str) -> Fields:
    """The config as one layer sees it."""
    apart = text.get("per_layer_config")
    if isinstance(apart, Mapping):
        name = str(number).lstrip("0")
        fields: object = next((own for key, own in apart.items() if str(key).lstrip("0") == name), {})
        if not isinstance(fields, Mapping):
            raise ConfigError(f"what per_layer_config says of layer {number} is no table of fields")
        return {**text, **fields}
    if kind == FULL and "global_head_dim" in text:
        heads = text.get("num_global_key_value_heads") if text.get("attention_k_eq_v", True) else None
        heads = heads or text.get("num_key_value_heads")
        return {**text, "head_dim": text["global_head_dim"], "num_key_value_heads": heads}
    return text


# --- what each layer needs -------------------------------------------------------------------------------------------


def _need(text: Fields, number: int, kind: str, context: int) -> Need:
    """A window or a chunk as long as the longest request is no bound at all."""
    if kind == FULL:
        return Full()
    reach = _history(text) if kind == SLIDING else positive(text, "attention_chunk_size")
    if kind not in (SLIDING, CHUNKED):
        raise ConfigError(
            f"layer {number} is a layer of {kind}, which keeps no K and V of each token; not supported yet"
        )
    if reach is None:
        raise ConfigError(f"layer {number} has {kind}, but the config does not say how far it sees")
    if context and reach >= context - (kind == SLIDING):
        return Full()
    return Window(reach) if kind == SLIDING else Chunked(reach)


def _kinds(text: Fields, count: int) -> list[str]:
    """`layer_types` where the config has them; else as configs said it before there were any."""
    listed = text.get("layer_types")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        if len(listed) < count:
            raise ConfigError(f"layer_types has {len(listed)} layers, and num_hidden_layers is {count}")
        return [str(kind) for kind in listed[:count]]
    family = _family(text)
    for name, say in OLDER.items():
        if name in text or name == family:
            return say(text, count)
    return [SLIDING if _slides(text) else FULL] * count


def _slides(text: Fields, *, unsaid: bool = True) -> bool:
    return bool(_history(text)) and text.get("use_sliding_window", unsaid) is not False


def _history(text: Fields) -> int | None:
    """Tokens that a layer with a window sees before the one it computes, which `sliding_window` counts as well."""
    before, window = positive(text, "sliding_window_size"), positive(text, "sliding_window")
    return before or (window - 1 if window else None)


def _by_pattern(text: Fields, count: int) -> list[str]:
    """Every n-th layer is full, or a word of L and G says it."""
    pattern = text.get("sliding_window_pattern")
    if not _history(text) or pattern is None:
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
    return [SLIDING if _slides(text, unsaid=False) and number >= first else FULL for number in range(count)]


def _last_of(every: int) -> Callable[[Fields, int], list[str]]:
    """Every so many layers the last is full, unless the config has a pattern of its own."""
    return lambda text, count: _by_pattern({"sliding_window_pattern": every, **text}, count)


def _first_of_four(text: Fields, count: int) -> list[str]:
    return [SLIDING if number % 4 and _history(text) else FULL for number in range(count)]


def _last_of_six_and_first(text: Fields, count: int) -> list[str]:
    return [FULL, *_last_of(6)(text, count)[1:]]


def _last_of_six_and_last(text: Fields, count: int) -> list[str]:
    return [*_last_of(6)(text, count)[:-1], FULL]


def _by_rope(text: Fields, count: int) -> list[str]:
    """Layers with rotary positions see a chunk, the others everything."""
    if not positive(text, "attention_chunk_size"):
        return [FULL] * count
    flags = text.get("no_rope_layers")
    if isinstance(flags, Sequence) and flags:
        return [CHUNKED if flag else FULL for flag in flags[:count]]
    every = positive(text, "no_rope_layer_interval") or 4
    return [FULL if (number + 1) % every == 0 else CHUNKED for number in range(count)]


OLDER: Mapping[str, Callable[[Fields, int], list[str]]] = {
    "hybrid_layer_pattern": _by_flags,
    "sliding_window_pattern": _by_pattern,
    "max_window_layers": _by_depth,
    "gpt_oss": _last_of(2),
    "gemma2": _last_of(2),
    "gemma3": _last_of(6),
    "gemma3n": _last_of(5),
    "gemma4": _last_of_six_and_last,
    "cohere2": _last_of(4),
    "exaone4": _last_of(4),
    "olmo3": _last_of(4),
    "granite_swa": _first_of_four,
    "mimo_v2_flash": _last_of_six_and_first,
    "llama4": _by_rope,
}
"""A field, or a family of models, that tells layers apart in configs without `layer_types`."""

_GEMMA: Fields = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_144,
    "tie_word_embeddings": True,
}
LEFT_OUT: Mapping[str, Fields] = {
    "gemma2": {**_GEMMA, "vocab_size": 256_000, "sliding_window": 4096, "max_position_embeddings": 8192},
    "gemma3": {**_GEMMA, "vocab_size": 262_208, "sliding_window": 4096, "max_position_embeddings": 131_072},
    "gemma3n": {
        **_GEMMA,
        "vocab_size": 262_400,
        "num_key_value_heads": 2,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "max_position_embeddings": 32_768,
    },
    "gemma4": {**_GEMMA, "global_head_dim": 512, "sliding_window": 512, "max_position_embeddings": 131_072},
}
"""What published configs of a family leave out where it is the family's usual value."""


# --- what each layer keeps -------------------------------------------------------------------------------------------


def _layer(text: Fields, need: Need) -> LayerShape:
    latent = positive(text, "kv_lora_rank")
    if latent:
        return LayerShape(need, 1, latent + _whole(text, "qk_rope_head_dim"), 0)
    prefix = "" if isinstance(need, Full) else "swa_"
    heads = _whole(text, "num_attention_heads")
    kv_heads = first_of(text, f"{prefix}num_key_value_heads", "num_key_value_heads", "num_attention_groups") or heads
    if prefix and _family(text) == "mimo_v2_flash" and "swa_num_key_value_heads" not in text:
        kv_heads *= 2
    key = first_of(text, f"{prefix}head_dim", "head_dim") or _whole(text, "hidden_size") // heads
    if not key:
        raise ConfigError(f"the config says no head_dim, and its hidden_size is less than its {heads} heads")
    value = first_of(text, f"{prefix}v_head_dim", "v_head_dim") or key
    return LayerShape(need, kv_heads, key, value)


def _item_bytes(text: Fields) -> int:
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return ITEM_BYTES.get(dtype, 2)


def first_of(text: Fields, *names: str) -> int | None:
    """The first of several fields that is a positive whole number."""
    return next((value for name in names if (value := positive(text, name))), None)


def positive(text: Fields, name: str) -> int | None:
    """A positive whole number, where the field is one. Raises ConfigError where it is absurdly large."""
    value = text.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return None
    if value >= MOST:
        raise ConfigError(f"the config's {name} is more than can be meant")
    return value


def _whole(text: Fields, name: str) -> int:
    value = positive(text, name)
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
