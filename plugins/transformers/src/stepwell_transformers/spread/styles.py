"""The styles that plans of tensor parallelism name, and what each of them cuts."""

from __future__ import annotations

from collections.abc import Mapping

from stepwell_transformers.spread.cut import Cut

COLUMN, ROW = frozenset({"colwise", "packed_colwise"}), frozenset({"rowwise"})
GATHER = frozenset({"colwise_gather_output", "colwise_rep"})
SPLIT_INPUT = frozenset({"rowwise_split_input", "rowwise_rep"})
PACKED_LAST = frozenset({"packed_rowwise"})
EXPERTS, EMBEDDING, ONCE = "moe_tp_experts", "embedding_rowwise", "once"
SAME = frozenset({"replicated_with_grad_allreduce", "replicate", "local_params", "mla_kv_a_proj", "sequence_parallel"})
"""What every rank does alike, where no gradient is wanted: nothing is cut by it."""
KNOWN = COLUMN | ROW | GATHER | SPLIT_INPUT | PACKED_LAST | {EXPERTS, EMBEDDING, ONCE}

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "gpt_oss": {
        "model.layers.*.self_attn.q_proj": "colwise",
        "model.layers.*.self_attn.k_proj": "colwise",
        "model.layers.*.self_attn.v_proj": "colwise",
        "model.layers.*.self_attn.sinks": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        # Gate and up lie side by side, number by number: a run of both is a run of each.
        "model.layers.*.mlp.experts.gate_up_proj": "rowwise",
        "model.layers.*.mlp.experts.gate_up_proj_bias": "rowwise",
        "model.layers.*.mlp.experts.down_proj": "colwise",
        "model.layers.*.mlp.experts.down_proj_bias": ONCE,
        "model.layers.*.mlp.experts": EXPERTS,
    },
}
"""By `model_type`: what the library's plan of a family does not say, and is so."""


def cut_of(style: str, parameter: str, dims: int) -> Cut | None:
    """How a style cuts a weight of so many dimensions; None: it stays whole. `parameter`: its name in its module."""
    if style == ONCE:
        return Cut(0, once=True)
    if style in ROW | SPLIT_INPUT | PACKED_LAST:
        if parameter == "bias" or dims == 1:
            return None
        return Cut(dims - 1, pieces=2 if style in PACKED_LAST else 1)
    if style in COLUMN | GATHER:
        dim = max(dims - 2, 0)
        return Cut(dim, pieces=2 if style == "packed_colwise" else 1, padded=style in GATHER)
    return Cut(0, padded=True) if style == EMBEDDING else None
