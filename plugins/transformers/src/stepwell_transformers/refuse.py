"""What this runner does not run, said by name before any weights are loaded."""

from __future__ import annotations

from typing import Any

from stepwell import ConfigError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOWERS = ("vision_config", "audio_config", "speech_config")
LATENT = ("kv_lora_rank",)


def refuse(config: Any, name: str) -> None:
    """ConfigError that names the part, for a model that would not be served right. `config`: a PretrainedConfig."""
    part = unsupported(config)
    if part is not None:
        raise ConfigError(f"runner.model: {name} has {part}, which is not supported yet")


def unsupported(config: Any) -> str | None:
    """The first part of a model that is not run, in words; None: all of it is."""
    if getattr(config, "auto_map", None):
        return "code of its own (auto_map)"
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder and a decoder"
    for tower in TOWERS:
        if getattr(config, tower, None) is not None:
            return f"a tower for other input ({tower})"
    if getattr(config, "quantization_config", None) is not None:
        return "quantised weights (quantization_config)"
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith("ForCausalLM") for name in architectures):
        return f"no language model head ({', '.join(architectures)})"
    if any(getattr(config, field, None) for field in LATENT):
        return "latent attention (kv_lora_rank)"
    for field in EXPERTS:
        if (getattr(config, field, None) or 0) > 1:
            return f"a mixture of experts ({field})"
    return _other_attention(config)


def _other_attention(config: Any) -> str | None:
    kinds = {str(kind) for kind in getattr(config, "layer_types", None) or ()} - {"full_attention"}
    if kinds:
        return f"layers of another attention ({', '.join(sorted(kinds))})"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and not getattr(config, "layer_types", None):
        return f"sliding-window attention (sliding_window = {window})"
    if getattr(config, "attention_chunk_size", None):
        return "chunked attention (attention_chunk_size)"
    return None
