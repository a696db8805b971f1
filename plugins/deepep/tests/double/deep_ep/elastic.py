"""The second generation: rows sorted by expert, exactly as many as came or as many as could."""

import torch

from deep_ep.event import EventHandle, EventOverlap
from deep_ep.wired import Wired


class EPHandle:
    """What combine needs, and counts."""


class ElasticBuffer(Wired):
    def __init__(
        self,
        group,
        num_bytes=None,
        num_cpu_bytes=0,
        num_max_tokens_per_rank=0,
        hidden=0,
        num_topk=0,
        use_fp8_dispatch=False,
        deterministic=False,
        allow_hybrid_mode=True,
        allow_multiple_reduction=True,
        prefer_overlap_with_compute=True,
        sl_idx=3,
        num_allocated_qps=0,
        num_cpu_timeout_secs=300,
        num_gpu_timeout_secs=100,
        explicitly_destroy=False,
    ):
        assert explicitly_destroy and num_bytes % (2 << 20) == 0
        assert isinstance(num_cpu_timeout_secs, int) and isinstance(num_gpu_timeout_secs, int)
        self.join(group)
        self.num_bytes, self.hybrid = num_bytes, allow_hybrid_mode

    @staticmethod
    def get_buffer_size_hint(
        group,
        num_max_tokens_per_rank,
        hidden,
        num_topk=0,
        use_fp8_dispatch=False,
        allow_hybrid_mode=True,
        allow_multiple_reduction=True,
    ):
        size = 4 * group.size() * num_max_tokens_per_rank * (2 * hidden + 16 * num_topk)
        return -(-size // (2 << 20)) * (2 << 20)

    @staticmethod
    def capture():
        return EventHandle()

    def dispatch(
        self,
        x,
        topk_idx=None,
        topk_weights=None,
        cumulative_local_expert_recv_stats=None,
        num_experts=None,
        num_max_tokens_per_rank=None,
        expert_alignment=None,
        num_sms=0,
        num_qps=0,
        previous_event=None,
        previous_event_before_epilogue=None,
        async_with_compute_stream=False,
        allocate_on_comm_stream=False,
        handle=None,
        do_handle_copy=True,
        do_cpu_sync=None,
        do_expand=False,
        do_zero_padding=False,
        use_tma_aligned_col_major_sf=False,
    ):
        assert handle is None and do_expand and expert_alignment in (None, 1) and num_experts % self.size == 0
        assert x.dim() == 2 and x.is_contiguous() and x.dtype == torch.bfloat16 and x.shape[1] % 8 == 0
        assert 0 < len(x) <= num_max_tokens_per_rank and topk_idx.dtype == torch.int64 and topk_idx.is_contiguous()
        assert topk_weights.dtype == torch.float32 and topk_weights.shape == topk_idx.shape
        self._beside(previous_event, async_with_compute_stream, allocate_on_comm_stream)
        own, top_k = num_experts // self.size, topk_idx.shape[1]
        parts = []
        for rank in range(self.size):
            local = topk_idx - rank * own
            token, at = ((local >= 0) & (local < own)).nonzero(as_tuple=True)
            parts.append((token, x[token].clone(), local[token, at], topk_weights[token, at].clone()))
        receive = self.post("dispatch", parts)
        handle, event = EPHandle(), EventOverlap(EventHandle())
        if do_cpu_sync:
            came = receive("Dispatch CPU wait exception (buffer.hpp:1): CPU side received count")
            count = sum(len(part[0]) for part in came)
        else:
            count = self.size * num_max_tokens_per_rank * min(top_k, own)
        rows = torch.full((count, x.shape[1]), float("nan"), dtype=torch.bfloat16)
        shares = torch.full((count,), float("nan"))
        each = handle.num_unaligned_recv_tokens_per_expert = torch.full((own,), -7, dtype=torch.int32)
        handle.num_recv_tokens_per_expert_list = []
        handle.topk_idx = topk_idx if not do_handle_copy else topk_idx.clone()

        def finish():
            parts = came if do_cpu_sync else receive("CUDA error: unspecified launch failure")
            source = torch.cat([torch.full((len(part[0]),), rank) for rank, part in enumerate(parts)])
            token, values, expert, share = (torch.cat([part[at] for part in parts]) for at in range(4))
            order = torch.argsort(expert * 1000 - torch.arange(len(expert)) % 1000)  # no order within an expert
            rows[: len(order)], shares[: len(order)] = values[order], share[order]
            each.copy_(torch.stack([(expert == local).sum() for local in range(own)]))
            handle.came = source[order], token[order]

        if do_cpu_sync:
            finish()
            handle.num_recv_tokens_per_expert_list = each.tolist()
            late, shares = event.later(rows.clone()), event.later(shares.clone())
            return late, None, shares, handle, event.known(async_with_compute_stream)
        event.event.finish = finish
        return rows, None, shares, handle, event.known(async_with_compute_stream)

    def combine(
        self,
        x,
        handle,
        topk_weights=None,
        bias=None,
        num_sms=0,
        num_qps=0,
        previous_event=None,
        previous_event_before_epilogue=None,
        async_with_compute_stream=False,
        allocate_on_comm_stream=False,
    ):
        assert x.dim() == 2 and x.is_contiguous() and x.dtype == torch.bfloat16 and topk_weights is None
        self._beside(previous_event, async_with_compute_stream, allocate_on_comm_stream)
        source, token = handle.came
        used = x[: len(source)].clone()
        receive = self.post("combine", [(token[source == rank], used[source == rank]) for rank in range(self.size)])
        sums = torch.full((len(handle.topk_idx), x.shape[1]), float("nan"), dtype=torch.bfloat16)

        def finish():
            whole = torch.zeros(sums.shape)
            for places, rows in receive("CUDA error: unspecified launch failure"):
                whole.index_add_(0, places, rows.float())
            sums.copy_(whole)

        return sums, None, EventOverlap(EventHandle(finish)).known(async_with_compute_stream)

    def destroy(self):
        self.leave()

    def _beside(self, previous_event, async_with_compute_stream, allocate_on_comm_stream):
        assert async_with_compute_stream == allocate_on_comm_stream == (previous_event is not None)
        assert previous_event is None or isinstance(previous_event, EventHandle), "not an EventOverlap"
