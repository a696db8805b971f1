"""What an RMSNorm multiplies by, passed to operations that norm on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Norm:
    """x / rms(x) * (weight + offset), over the last dimension and in float32."""

    weight: torch.Tensor | None
    """None: it only scales."""
    eps: float
    offset: float = 0.0
    """1.0 where a model stores its weight less one, as Gemma does."""
    late: bool = False
    """Whether the weight multiplies in float32 and the product is cast (Gemma, GPT-OSS); Llama casts first."""
