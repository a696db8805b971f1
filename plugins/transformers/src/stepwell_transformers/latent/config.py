"""What a config says of latent attention."""

from __future__ import annotations

from typing import Any

PARTS = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
"""Numbers of a head: of its key with a position, of its key without one, of its value."""
CHOOSING = ("index_topk",)
"""A layer sees only the tokens that it picks, by keys of another kind that it keeps as well."""
BORROWED = ("kv_sharing_modes",)


def latent_of(config: Any) -> int:
    """Numbers of a token's latent; 0: layers keep K and V."""
    return _number(config, "kv_lora_rank")


def lacking(config: Any) -> str | None:
    """What there is in a config's latent attention that is not run; None: nothing, or it has none."""
    if not latent_of(config):
        return None
    if found := next((field for field in CHOOSING if getattr(config, field, None)), None):
        return f"latent attention that picks the tokens it sees ({found})"
    if found := next((field for field in BORROWED if getattr(config, field, None)), None):
        return f"layers that share latents ({found})"
    missing = [field for field in PARTS if not _number(config, field)]
    return f"latent attention (kv_lora_rank) without {', '.join(missing)}" if missing else None


def _number(config: Any, field: str) -> int:
    value = getattr(config, field, None)
    return value if isinstance(value, int) and value > 0 else 0
