"""Low latency: two buffers of flags, results by hooks, at most two batches' results alive."""

from deep_ep.event import EventOverlap
from stepwell_testkit.low_latency import HIDDEN, LowLatency
from stepwell_testkit.wire import TwoBuffers


class Buffer:
    def begin_low_latency(self):
        self.nvshmem_qp_depth = 1024
        self.clean = False
        self.alive = 0
        self.kernels = LowLatency(TwoBuffers(self.wire, self.rank), self.rank, self.size, self.trap)

    def trap(self, missing):
        if missing:
            raise RuntimeError("CUDA error: unspecified launch failure")

    def later(self, hook, return_recv_hook):
        return hook if return_recv_hook else hook()

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        message = 16 + max(2 * hidden, hidden + 4 * hidden // 128)
        return 4 * num_experts * num_max_dispatch_tokens_per_rank * message // 128 * 128

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        assert self.low_latency_mode and hidden in HIDDEN and num_experts % self.size == 0
        self.clean = True

    def low_latency_dispatch(
        self,
        x,
        topk_idx,
        num_max_dispatch_tokens_per_rank,
        num_experts,
        cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None,
        use_fp8=True,
        round_scale=False,
        use_ue8m0=False,
        async_finish=False,
        return_recv_hook=False,
    ):
        assert self.live and self.low_latency_mode and self.clean, "marks of other kernels are in the buffer"
        assert self.nvshmem_qp_depth >= (num_max_dispatch_tokens_per_rank + 1) * 2
        assert self.num_qps_per_rank >= num_experts // self.size
        assert not async_finish and not round_scale and not use_ue8m0
        size = self.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, x.shape[1], self.size, num_experts)
        assert size <= self.num_rdma_bytes
        self.alive += 1
        assert self.alive <= 2, "results of three dispatches alive"
        most = num_max_dispatch_tokens_per_rank
        rows, counts, handle, hook = self.kernels.dispatch(x, topk_idx, most, num_experts, use_fp8)
        return rows, counts, handle, EventOverlap(None), self.later(hook, return_recv_hook)

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
        assert self.live and not (use_logfmt or zero_copy or async_finish) and out is None
        self.alive -= 1
        sums, hook = self.kernels.combine(x, topk_idx, topk_weights, handle)
        return sums, EventOverlap(None), self.later(hook, return_recv_hook)
