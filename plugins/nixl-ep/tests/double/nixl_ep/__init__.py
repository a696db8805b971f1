"""A double of the library: ranks are threads, and the wire is memory. Asserts what the library asserts, and more."""

from datetime import timedelta

import torch

from stepwell_testkit.low_latency import LowLatency
from stepwell_testkit.wire import TwoBuffers

topk_idx_t = torch.int64
wire = None
"""Set by tests."""
room = 1 << 40


class Buffer:
    def __init__(
        self,
        disable_ll_nvlink=False,
        explicitly_destroy=False,
        rank=0,
        low_latency_mode=True,
        group=None,
        comm=None,
        tcp_store_group=None,
        timeout_ms=30_000,
    ):
        assert explicitly_destroy and low_latency_mode and group is None and comm is None
        assert isinstance(timeout_ms, int) and timeout_ms > 0
        self.rank, self.store, self.ranks, self.connected = rank, tcp_store_group, None, []

    @staticmethod
    def get_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        return 4 * num_experts * num_max_dispatch_tokens_per_rank * (2 * hidden + 16) // 128 * 128

    def update_memory_buffers(self, num_ranks, num_experts_per_rank, num_rdma_bytes, num_nvl_bytes=0):
        assert self.ranks is None, "Multiple calls to update_memory_buffers are not supported"
        assert num_rdma_bytes % 128 == 0 and num_nvl_bytes == 0 and 0 <= self.rank < num_ranks
        if num_rdma_bytes > room:
            raise RuntimeError("cuMemCreate failed: out of memory")
        self.ranks, self.own, self.bytes = num_ranks, num_experts_per_rank, num_rdma_bytes
        self.masked = torch.ones(num_ranks, dtype=torch.int32)
        self.masked[self.rank] = 0
        self.kernels = LowLatency(TwoBuffers(wire, self.rank), self.rank, num_ranks, self._mask)

    def connect_ranks(self, remote_ranks, activate=True):
        assert activate and remote_ranks and self.rank not in remote_ranks and self.ranks is not None
        self.store.set(f"NIXL_EP/{self.rank}", b"metadata")
        self.store.wait([f"NIXL_EP/{rank}" for rank in remote_ranks], timedelta(seconds=20))
        self.connected = sorted([*remote_ranks, self.rank])
        self.masked[remote_ranks] = 0

    def low_latency_dispatch(
        self,
        x,
        topk_idx,
        num_max_dispatch_tokens_per_rank,
        num_experts=None,
        cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None,
        use_fp8=True,
        round_scale=False,
        use_ue8m0=False,
        async_finish=False,
        return_recv_hook=False,
    ):
        assert self.connected == list(range(self.ranks)), "not all ranks are connected"
        assert not (async_finish or round_scale or use_ue8m0)
        most, experts = num_max_dispatch_tokens_per_rank, self.own * self.ranks
        assert num_experts in (None, experts)
        assert self.get_rdma_size_hint(most, x.shape[1], self.ranks, experts) <= self.bytes
        rows, counts, handle, hook = self.kernels.dispatch(x, topk_idx, most, experts, use_fp8)
        return rows, counts, (*handle[:4],), object(), hook if return_recv_hook else hook()

    def low_latency_combine(
        self,
        x,
        topk_idx,
        topk_weights,
        handle,
        use_logfmt=False,
        zero_copy=False,
        async_finish=False,
        return_recv_hook=False,
        out=None,
        combine_wait_recv_cost_stats=None,
    ):
        assert not (use_logfmt or zero_copy or async_finish) and out is None
        sums, hook = self.kernels.combine(x, topk_idx, topk_weights, (*handle, self.own * self.ranks))
        return sums, object(), hook if return_recv_hook else hook()

    def dispatch(self, *args, **kwargs):
        return self.low_latency_dispatch(*args, **kwargs)

    def combine(self, *args, **kwargs):
        return self.low_latency_combine(*args, **kwargs)

    def query_mask_buffer(self, mask_status):
        assert mask_status.numel() == self.ranks and mask_status.dtype == torch.int32
        mask_status.copy_(self.masked)

    def destroy(self):
        assert self.ranks != -1, "destroyed twice"
        self.ranks = -1

    def _mask(self, missing):
        self.masked[missing] = 1
