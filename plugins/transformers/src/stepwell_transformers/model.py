"""A decoder of the transformers library whose attention reads and writes our pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from stepwell import ConfigError
from stepwell_kernels import Batch, PagePool, paged_attention, write_pages
from stepwell_transformers.models import quiet
from stepwell_transformers.refuse import refuse

NAME = "stepwell_paged"


class Paging:
    """What attention needs of a step; travels through the model's forward as an extra argument."""

    def __init__(self, pool: PagePool, batch: Batch, before_layer: Callable[[int], None]) -> None:
        self.pool = pool
        self.batch = batch
        self.before_layer = before_layer
        """Called before a layer reads its pages: its loads have to be done by then."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    paging: Paging,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The attention of every layer: `query` [1, heads, tokens, head_dim], K and V with their own heads."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    paging.before_layer(layer)
    keys, values = paging.pool.keys(layer), paging.pool.values(layer)
    write_pages(keys, key[0].transpose(0, 1), paging.batch)
    write_pages(values, value[0].transpose(0, 1), paging.batch)
    found = paged_attention(query[0].transpose(0, 1), keys, values, paging.batch, scaling)
    return found[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Paged attention masks by itself."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _no_mask)


class PagedModel:
    """Weights and geometry of a model, and its forward over a ragged batch."""

    def __init__(self, folder: Path, name: str, dtype: torch.dtype | None, device: torch.device) -> None:
        try:
            config = AutoConfig.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"runner.model: the config in {folder} cannot be read ({error})") from error
        refuse(config, name)
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto", attn_implementation=NAME)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ConfigError(f"runner.model: the weights in {folder} cannot be loaded ({error})") from error
        self.model: Any = model.to(device).eval()
        self.device = device
        self.dtype: torch.dtype = model.dtype
        self.layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        self.kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.context = int(config.max_position_embeddings)
        self.vocab = int(config.vocab_size)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, paging: Paging, rows: torch.Tensor
    ) -> torch.Tensor:
        """Compute a flat batch; answer the logits [len(rows), vocab] of the tokens at `rows`."""
        out = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            paging=paging,
        )
        logits: torch.Tensor = out.logits[0]
        return logits
