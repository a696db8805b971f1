"""What a model's weights cost a step, counted from its Hugging Face config: multiplications, and bytes that are read.

Counted are the projections of attention, gated feed-forward layers, experts and the output layer; norms and biases are
too small to matter. What a config leaves out counts as in the families that leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.errors import ConfigError
from stepwell.models import LayerShape, ModelShape, first_of, positive, text_of
from stepwell.schedule.timing import Narrow, Timing
from stepwell.types import Full

Fields = Mapping[str, object]
EXPERT_BYTES = {"mxfp4": 17 / 32, "nvfp4": 9 / 16}
"""Bytes a weight of formats in which experts alone are small: 4 bits, and a scale for 32 or 16 of them."""
BYTES = {"fp8": 1.0, "fbgemm_fp8": 1.0, "compressed-tensors": 1.0}
"""Bytes a weight of formats for all layers; others say it as `bits`."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model."""

    active: int
    """That one token's forward multiplies with."""
    always_bytes: float
    """Read by every step, whatever its tokens."""
    expert_bytes: float
    """Of all experts of which a token chooses some."""
    expert_share: float
    """Chosen by one token, of all."""
    held_bytes: float
    """Held on the device: also the embeddings, of which a step reads next to nothing."""
    experts: int = 0
    """Of one layer."""
    expert_parameters: int = 0
    """Of all experts of which a token chooses some."""


def read_weights(config: Fields, shape: ModelShape) -> Weights:
    """Count a model's weights. Raises ConfigError where the config does not say a size."""
    text = text_of(config)
    hidden, vocab = need(text, "hidden_size"), need(text, "vocab_size")
    every = hidden * vocab + sum(_attention(text, layer, hidden) for layer in shape.layers)
    experts = _Experts.of(text, hidden)
    mixed = [experts is not None and _has_experts(text, layer) for layer in range(len(shape.layers))]
    every += (len(mixed) - sum(mixed)) * 3 * hidden * _dense(text)
    one = other = 0.0
    chosen = routed = count = 0
    each, each_expert = _bytes(text, shape.item_bytes)
    if experts is not None and any(mixed):
        every += sum(mixed) * experts.shared
        chosen, routed = sum(mixed) * experts.chosen * experts.size, sum(mixed) * experts.count * experts.size
        count, one, other = experts.count, experts.chosen / experts.count, routed * each_expert
    always = every * each
    tied = text.get("tie_word_embeddings") is True
    held = always + other + (0 if tied else hidden * vocab * each)
    return Weights(every + chosen, always, other, one, held, count, routed)


def timing_of(shape: ModelShape, config: Fields, device: Timing) -> tuple[Timing, float]:
    """A model on the device of another timing, and the bytes that its weights take there."""
    weights = read_weights(config, shape)
    text = text_of(config)
    costs = {group.need: [float(group.token_bytes), 0.0] for group in shape.groups()}
    for layer in shape.layers:
        costs[layer.need][1] += _pair_flops(text, layer)
    full = costs.get(Full(), [0.0, 0.0])
    timing = Timing(
        parameters=float(weights.active),
        weight_bytes=weights.always_bytes,
        kv_bytes=full[0],
        pair_flops=full[1],
        layers=len(shape.layers),
        flops=device.flops,
        bandwidth=device.bandwidth,
        link=device.link,
        overhead=device.overhead,
        narrow=tuple(Narrow(of, *cost) for of, cost in costs.items() if not isinstance(of, Full)),
        expert_bytes=weights.expert_bytes,
        expert_share=weights.expert_share,
        experts=weights.experts,
        expert_parameters=float(weights.expert_parameters),
    )
    return timing, weights.held_bytes


# --- attention -------------------------------------------------------------------------------------------------------


def _heads(text: Fields, layer: LayerShape) -> int:
    own = None if isinstance(layer.need, Full) else positive(text, "swa_num_attention_heads")
    return own or need(text, "num_attention_heads")


def _attention(text: Fields, layer: LayerShape, hidden: int) -> int:
    heads = _heads(text, layer)
    if layer.value_dim:
        narrow = layer.kv_heads * (layer.key_dim + layer.value_dim)
        return hidden * (heads * (layer.key_dim + layer.value_dim) + narrow)
    latent, rope = need(text, "kv_lora_rank"), need(text, "qk_rope_head_dim")
    plain, value = need(text, "qk_nope_head_dim"), need(text, "v_head_dim")
    low = positive(text, "q_lora_rank")
    query = heads * (plain + rope)
    asks = low * (hidden + query) if low else hidden * query
    return asks + hidden * layer.key_dim + latent * heads * (plain + value) + heads * value * hidden


def _pair_flops(text: Fields, layer: LayerShape) -> int:
    """A score and a weighted sum: two operations a number of each, in the latent where the layer keeps one."""
    value = layer.value_dim or need(text, "kv_lora_rank")
    return 2 * _heads(text, layer) * (layer.key_dim + value)


# --- feed-forward layers ---------------------------------------------------------------------------------------------


def _dense(text: Fields) -> int:
    return positive(text, "intermediate_size_mlp") or need(text, "intermediate_size")


@dataclass(frozen=True, slots=True)
class _Experts:
    """One layer of experts."""

    count: int
    chosen: int
    size: int
    """Weights of one of them."""
    shared: int
    """Weights of the router and of what every token goes through."""

    @classmethod
    def of(cls, text: Fields, hidden: int) -> _Experts | None:
        count = first_of(text, "num_local_experts", "num_experts", "n_routed_experts")
        if count is None or count < 2:
            return None
        chosen = first_of(text, "num_experts_per_tok", "experts_per_token", "moe_topk")
        if chosen is None:
            raise ConfigError(f"the config has {count} experts, and does not say num_experts_per_tok")
        size = first_of(text, "moe_intermediate_size") or need(text, "intermediate_size")
        shared = positive(text, "shared_expert_intermediate_size") or (positive(text, "n_shared_experts") or 0) * size
        if str(text.get("model_type", "")).startswith("llama4"):
            shared = size
        return cls(count, min(chosen, count), 3 * hidden * size, hidden * count + 3 * hidden * shared)


def _has_experts(text: Fields, layer: int) -> bool:
    """Families say in different ways which layers have experts; where one says nothing, all have."""
    listed, dense = text.get("moe_layers"), text.get("mlp_only_layers")
    if isinstance(listed, Sequence):
        return layer in listed
    if isinstance(dense, Sequence) and layer in dense:
        return False
    flags = text.get("moe_layer_freq")
    if isinstance(flags, Sequence):
        return layer < len(flags) and bool(flags[layer])
    if layer < (positive(text, "first_k_dense_replace") or 0):
        return False
    every = first_of(text, "decoder_sparse_step", "interleave_moe_layer_step")
    if every:
        return (layer + 1) % every == 0
    return layer % (positive(text, "moe_layer_freq") or 1) == 0


# --- bytes, and fields of a config -----------------------------------------------------------------------------------


def _bytes(text: Fields, item_bytes: int) -> tuple[float, float]:
    """Bytes of a weight, and of one of an expert."""
    quantised = text.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return item_bytes, item_bytes
    method = str(quantised.get("quant_method", ""))
    if method in EXPERT_BYTES:
        return item_bytes, EXPERT_BYTES[method]
    bits = first_of(quantised, "bits", "w_bit")
    each = bits / 8 if bits else BYTES.get(method, float(item_bytes))
    return each, each


def need(text: Fields, name: str) -> int:
    """A field that must be there."""
    value = positive(text, name)
    if value is None:
        raise ConfigError(f"the config says no {name}")
    return value
