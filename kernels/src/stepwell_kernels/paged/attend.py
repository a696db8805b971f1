"""Attention of a whole step: its decodes, and its prompts."""

from __future__ import annotations

import torch

from stepwell_kernels.paged.decode import Scratch, paged_decode
from stepwell_kernels.paged.place import Tables
from stepwell_kernels.paged.prefill import paged_prefill
from stepwell_kernels.paged.step import Step


def attend_step(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    step: Step,
    scratch: Scratch,
    scale: float,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend from `query` [tokens, heads, dim] to a layer's pages, which hold the step's own tokens already.

    The arguments mean what they mean to `stepwell_kernels.attention.paged_attention`. Padding gives zeros.
    """
    out = torch.empty((*query.shape[:2], values.shape[3]), dtype=query.dtype, device=query.device)
    cut = step.shape.decodes
    if cut:
        own = step.slots[:cut], step.starts[:cut]
        paged_decode(query[:cut], keys, values, tables, *own, scale, sinks, softcap, out[:cut], scratch=scratch)
    if step.shape.prompts:
        paged_prefill(query[cut:], keys, values, tables, step, scale, sinks, softcap, out[cut:])
    elif step.shape.tokens > cut:
        out[cut:] = 0
    return out
