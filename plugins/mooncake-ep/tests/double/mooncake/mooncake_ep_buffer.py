"""A double of the library: ranks are threads, and the wire is memory. Asserts what the library asserts, and more."""

import torch

from stepwell_testkit.low_latency import LowLatency
from stepwell_testkit.wire import TwoBuffers

RECENT = 4
"""A combine needs the handle of one of the last dispatches."""
wires = {}
"""By the name of a group; set by tests."""
fallback = False
"""Whether ranks do not reach each other's memory."""
room = 1 << 40


class Buffer:
    def __init__(self, group, num_ep_buffer_bytes, disable_p2p=False):
        if num_ep_buffer_bytes > room:
            raise RuntimeError("[EP] Failed to allocate GDR buffer")
        self.rank, self.group_size = group.rank(), group.size()
        self._use_fallback, self._active, self._recent = fallback, None, []
        self.num_ep_buffer_bytes = num_ep_buffer_bytes
        self._kernels = LowLatency(TwoBuffers(wires[group.name], self.rank), self.rank, self.group_size, self._mask)

    def _mask(self, missing):
        self._active[missing] = 0

    @staticmethod
    def get_ep_buffer_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        return 4 * num_experts * num_max_dispatch_tokens_per_rank * (2 * hidden + 16)

    def dispatch(
        self,
        x,
        topk_idx,
        active_ranks,
        num_max_dispatch_tokens_per_rank,
        num_experts,
        timeout_us,
        use_fp8=None,
        async_finish=False,
        return_recv_hook=False,
    ):
        self._ranks(active_ranks, timeout_us)
        assert not async_finish and use_fp8 is not None
        size = self.get_ep_buffer_size_hint(num_max_dispatch_tokens_per_rank, x.shape[1], 0, num_experts)
        assert size <= self.num_ep_buffer_bytes
        most = num_max_dispatch_tokens_per_rank
        rows, counts, handle, hook = self._kernels.dispatch(x, topk_idx, most, num_experts, use_fp8)
        self._recent = [*self._recent[1 - RECENT :], handle]
        return rows, counts, handle, object(), hook if return_recv_hook else hook()

    def combine(
        self,
        x,
        topk_idx,
        topk_weights,
        active_ranks,
        timeout_us,
        handle,
        zero_copy=False,
        async_finish=False,
        return_recv_hook=False,
        out=None,
    ):
        self._ranks(active_ranks, timeout_us)
        assert not async_finish and not zero_copy and out is None
        assert any(handle is recent for recent in self._recent), "a handle of long ago"
        sums, hook = self._kernels.combine(x, topk_idx, topk_weights, handle)
        return sums, object(), hook if return_recv_hook else hook()

    def _ranks(self, active_ranks, timeout_us):
        assert not self._use_fallback
        assert active_ranks.shape == (self.group_size,) and active_ranks.dtype == torch.int32
        assert active_ranks.is_contiguous() and isinstance(timeout_us, int) and 0 < timeout_us < 1 << 31
        self._active = active_ranks
