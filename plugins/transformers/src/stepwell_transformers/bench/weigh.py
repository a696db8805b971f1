"""What a model weighs, counted on a model without storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stepwell_transformers.bench.arithmetic import Weights

COUNT = ("num_local_experts", "num_experts", "n_routed_experts")


def weigh(folder: Path, item_bytes: int) -> Weights:
    """The parameters of the model whose config is in a folder."""
    config: Any = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    experts = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    whole = sum(weight.numel() for weight in model.parameters())
    apart = {id(embedding): embedding.numel(), id(head): head.numel()}
    return Weights(
        embedding=embedding.numel(),
        head=head.numel(),
        experts=experts,
        rest=whole - experts - sum(apart.values()),
        count=next((found for name in COUNT if (found := getattr(config, name, None))), 0) if experts else 0,
        each=int(getattr(config, "num_experts_per_tok", 0) or 0) if experts else 0,
        item_bytes=item_bytes,
    )
