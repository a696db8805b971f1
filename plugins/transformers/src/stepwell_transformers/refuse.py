"""What this runner does not run, said by name before any weights are loaded."""

from __future__ import annotations

from typing import Any

from stepwell import ConfigError
from stepwell_transformers import latent

OTHER_INPUT = ("vision_config", "audio_config", "speech_config", "video_config", "image_token_id", "audio_token_id")
RECURRENT = (
    "mamba_d_state",
    "mamba_d_ssm",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
    "time_step_rank",
    "linear_num_key_heads",
    "attn_layer_period",
    "layers_block_type",
    "block_types",
    "hybrid_override_pattern",
    "conv_L_cache",
    "lru_width",
    "rescale_every",
)
GEOMETRY = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings")
SERVED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
SERVED_WEIGHTS = (None, "mxfp4")
"""As they are, or dequantised while they are loaded."""
MOVING_ROPE = ("dynamic", "longrope")


def refuse(config: Any, name: str) -> None:
    """ConfigError that names the part, for a model that would not be served right. `config`: a PretrainedConfig."""
    part = unsupported(config)
    if part is not None:
        raise ConfigError(f"runner.model: {name} has {part}, which is not supported yet")


def unsupported(config: Any) -> str | None:
    """The first part of a model that is not run, in words; None: the config shows none."""
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder beside its decoder (is_encoder_decoder)"
    if found := _named(config, OTHER_INPUT):
        return f"a tower for images or sound ({found})"
    if (method := quantisation(config)) not in SERVED_WEIGHTS:
        return f"quantised weights ({method})"
    if found := _named(config, RECURRENT):
        return f"recurrent layers ({found})"
    if lacking := latent.lacking(config):
        return lacking
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return f"no head that says tokens ({', '.join(architectures)})"
    return _other_attention(config) or _other_geometry(config)


def _named(config: Any, fields: tuple[str, ...]) -> str | None:
    return next((field for field in fields if getattr(config, field, None)), None)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def quantisation(config: Any) -> str | None:
    """How a model's weights are quantised; None: they are not."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    known = found if isinstance(found, dict) else vars(found)
    method = known.get("quant_method", "quantization_config")
    return str(getattr(method, "value", method))


def _other_attention(config: Any) -> str | None:
    kinds = {str(kind) for kind in getattr(config, "layer_types", None) or ()} - SERVED_LAYERS
    if kinds:
        return f"recurrent layers or layers of another kind ({', '.join(sorted(kinds))})"
    if getattr(config, "alibi", False):
        return "attention biased by distance (alibi)"
    if getattr(config, "num_kv_shared_layers", None):
        return "layers that share K and V (num_kv_shared_layers)"
    return _moving_rope(config)


def _moving_rope(config: Any) -> str | None:
    """Angles that depend on how long the longest row of a batch is: K in a page would depend on its neighbours."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    kinds = [str(part.get("rope_type", part.get("type", "default"))) for part in each]
    moving = next((kind for kind in kinds if kind in MOVING_ROPE), None)
    return f"positions that change with the length of a batch (rope_type = {moving})" if moving else None


def _other_geometry(config: Any) -> str | None:
    for field in GEOMETRY:
        if _number(getattr(config, field, None)) < 1:
            return f"no single {field}"
    heads = getattr(config, "num_key_value_heads", 1)
    if heads is not None and not isinstance(heads, int):
        return "layers of different shapes (num_key_value_heads)"
    return None
