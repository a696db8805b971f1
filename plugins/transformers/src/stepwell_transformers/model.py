"""A decoder of the transformers library whose attention reads and writes our pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils import logging

from stepwell import ConfigError
from stepwell_kernels import Batch, PagePool, paged_attention, write_pages
from stepwell_transformers.refuse import refuse

NAME = "stepwell_paged"
FOREIGN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What a layer may hand to its attention that ours does not do."""


class Paging:
    """What attention needs of a step; travels through the model's forward as an extra argument."""

    def __init__(self, pool: PagePool, batch: Batch, before_layer: Callable[[int], None]) -> None:
        self.pool = pool
        self.batch = batch
        self.before_layer = before_layer
        """Called before a layer reads its pages: its loads have to be done by then."""


class Foreign(Exception):
    """A layer asks for attention that ours is not."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    paging: Paging,
    **more: object,
) -> tuple[torch.Tensor, None]:
    """The attention of every layer: `query` [1, heads, tokens, head_dim], K and V with their own heads."""
    for name in FOREIGN:
        if more.get(name) is not None:
            raise Foreign(name)
    layer = module.layer_idx
    assert isinstance(layer, int)
    paging.before_layer(layer)
    keys, values = paging.pool.keys(layer), paging.pool.values(layer)
    write_pages(keys, key[0].transpose(0, 1), paging.batch)
    write_pages(values, value[0].transpose(0, 1), paging.batch)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found = paged_attention(query[0].transpose(0, 1), keys, values, paging.batch, scale)
    return found[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Paged attention masks by itself."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _no_mask)


class PagedModel:
    """Weights and geometry of a model, and its forward over a ragged batch."""

    def __init__(self, folder: Path, name: str, dtype: torch.dtype | None, device: torch.device) -> None:
        """Raises ConfigError for a model that cannot be loaded, or has a part that is not run."""
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # that library raises whatever its parts raise
            raise ConfigError(f"runner.model: the config in {folder} cannot be read ({_line(error)})") from error
        refuse(config, name)
        self.model: Any = _load(folder, dtype, device)
        self.device = device
        self.dtype: torch.dtype = self.model.dtype
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

    @contextmanager
    def by_itself(self) -> Iterator[Any]:
        """The model with an attention of its own library."""
        self.model.set_attn_implementation("sdpa" if self.model._supports_sdpa else "eager")
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(NAME)


def _load(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Any:
    with _quiet():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype or "auto",
                attn_implementation=NAME,
                device_map=device if device.type != "cpu" else None,
                use_safetensors=True,
                trust_remote_code=False,
            )
        except Exception as error:  # that library raises whatever its parts raise
            raise ConfigError(f"runner.model: the weights in {folder} cannot be loaded ({_line(error)})") from error
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of the library underneath: a server's log is no place for them."""
    library: Any = logging
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.enable_progress_bar()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
