"""The operator: one set of buffers, into which everything comes, whatever was in them."""

from dataclasses import dataclass
from enum import Enum
from itertools import count

import torch

from mori import shmem

wire = None
"""Set by tests."""
heap = 1 << 40


class EpDispatchCombineKernelType(Enum):
    IntraNode, IntraNodeLL, InterNode, InterNodeV1, InterNodeV1LL, AsyncLL = range(6)


@dataclass
class EpDispatchCombineConfig:
    data_type: torch.dtype
    rank: int
    world_size: int
    hidden_dim: int
    scale_dim: int
    scale_type_size: int
    max_token_type_size: int
    max_num_inp_token_per_rank: int
    num_experts_per_rank: int
    num_experts_per_token: int
    warp_num_per_block: int = 8
    block_num: int = 80
    max_total_recv_tokens: int = 0
    use_external_inp_buf: bool = True
    kernel_type: EpDispatchCombineKernelType = EpDispatchCombineKernelType.IntraNode
    gpu_per_node: int = 8
    rdma_block_num: int = 0
    num_qp_per_pe: int = 1
    quant_type: str = "none"


class EpDispatchCombineOp:
    def __init__(self, config):
        assert config.rank in shmem.asked, "shmem is not there"
        self.config, self.turns = config, count()
        self.split = config.kernel_type is EpDispatchCombineKernelType.AsyncLL
        most, wide = config.world_size * config.max_num_inp_token_per_rank, config.hidden_dim
        if most * wide * config.max_token_type_size > heap:
            raise RuntimeError("mori shmem: out of heap")
        self.rows = torch.full((most, wide), float("nan"), dtype=torch.bfloat16)
        self.weights = torch.full((most, config.num_experts_per_token), float("nan"))
        self.experts = torch.full((most, config.num_experts_per_token), -77, dtype=torch.int32)
        self.total = torch.full((1,), -7, dtype=torch.int32)
        self.sums = torch.full((config.max_num_inp_token_per_rank, wide), float("nan"), dtype=torch.bfloat16)
        self.pending = None

    def dispatch(
        self,
        input,
        weights,
        scales,
        indices,
        block_num=-1,
        rdma_block_num=-1,
        warp_per_block=-1,
        call_local_expert_count=False,
        *,
        routing=None,
        return_routing=False,
    ):
        config = self.config
        assert self.pending is None, "another batch is in the buffers"
        assert input.dtype == torch.bfloat16 and input.is_contiguous() and scales is None
        assert 0 < len(input) <= config.max_num_inp_token_per_rank and input.shape[1] == config.hidden_dim
        assert indices.dtype == torch.int32 and indices.shape == (len(input), config.num_experts_per_token)
        assert weights.dtype == torch.float32 and weights.shape == indices.shape
        ranks = torch.where(indices >= 0, indices // config.num_experts_per_rank, -1)
        parts = []
        for rank in range(config.world_size):
            tokens = (ranks == rank).any(1).nonzero().flatten()
            parts.append((tokens, input[tokens].clone(), weights[tokens].clone(), indices[tokens].clone()))
        self.indices = indices
        self._send("dispatch", parts, self._arrive)
        return self.rows, self.weights, None, self.experts, self.total

    def dispatch_send(
        self, input, weights, scales, indices, block_num=-1, warp_per_block=-1, call_local_expert_count=False
    ):
        assert self.split
        return self.dispatch(input, weights, scales, indices)

    def dispatch_recv(self, block_num=-1, warp_per_block=-1, call_local_expert_count=False):
        self._receive()

    def combine(
        self,
        input,
        weights,
        indices,
        block_num=-1,
        rdma_block_num=-1,
        warp_per_block=-1,
        use_external_inp_buf=-1,
        call_reset=False,
        *,
        routing=None,
    ):
        assert self.pending is None, "not received yet"
        assert input.dtype == torch.bfloat16 and input.is_contiguous() and len(input) == int(self.total)
        assert weights is None and torch.equal(indices, self.indices), "this rank's own routing"
        parts = list(zip(self.tokens, input.clone().split([len(each) for each in self.tokens]), strict=True))
        self._send("combine", parts, self._add)
        return self.sums, None

    def combine_send(self, input, weights, indices, block_num=-1, warp_per_block=-1):
        assert self.split
        return self.combine(input, weights, indices)

    def combine_recv(self, block_num=-1, warp_per_block=-1):
        self._receive()

    def _send(self, kind, parts, then):
        key = kind, next(self.turns)
        for to, part in enumerate(parts):
            wire.put(to, key, self.config.rank, part)
        self.pending = key, then
        if not self.split:
            self._receive()

    def _receive(self):
        (key, then), self.pending = self.pending, None
        came, missing = wire.take(self.config.rank, key)
        assert not missing, "it waits for ever"
        then(came)

    def _arrive(self, parts):
        self.tokens = [part[0] for part in parts]
        for into, at in ((self.rows, 1), (self.weights, 2), (self.experts, 3)):
            whole = torch.cat([part[at] for part in parts])
            into[: len(whole)] = whole
        self.total[0] = sum(len(each) for each in self.tokens)

    def _add(self, parts):
        whole = torch.zeros(len(self.indices), self.config.hidden_dim)
        for places, rows in parts:
            whole[places] += rows.float()
        self.sums[: len(whole)] = whole.to(torch.bfloat16)
