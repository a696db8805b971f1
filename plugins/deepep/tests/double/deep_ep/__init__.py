"""A double of the library, as far as the plugin uses it: ranks are threads, and the wire is memory.

Stricter than the library, which stops in a kernel or reads beside its arrays. What it computes beside the caller's
stream is garbage until the caller's stream has waited for it.
"""

import torch

from deep_ep import low
from deep_ep.elastic import ElasticBuffer, EPHandle
from deep_ep.event import EventHandle, EventOverlap
from deep_ep.wired import Wired

__all__ = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "topk_idx_t"]

topk_idx_t = torch.int64
LIKED = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


class Config:
    def __init__(self, num_sms, nvl_send, nvl_recv, rdma_send, rdma_recv):
        assert num_sms >= 0 and 0 < nvl_send < nvl_recv and 0 < rdma_send <= rdma_recv // 2
        self.num_sms, self.nvl_recv = num_sms, nvl_recv

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        return self.num_sms // 2 * min(num_ranks, 8) * self.nvl_recv * (hidden_bytes + 2176) // 128 * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        return 0 if num_ranks <= 8 else 1 << 20


class Buffer(low.Buffer, Wired):
    num_sms = 20
    made = []
    """Arguments of every buffer, for tests."""

    def __init__(
        self,
        group,
        num_nvl_bytes=0,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=24,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=False,
    ):
        assert explicitly_destroy
        assert num_nvl_bytes % 128 == 0 and num_rdma_bytes % 128 == 0
        assert group.size() in (2, 4, 8) or group.size() % 8 == 0 or low_latency_mode
        self.join(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.num_qps_per_rank = num_qps_per_rank
        if low_latency_mode:
            self.begin_low_latency()
        self.made.append((num_nvl_bytes, num_rdma_bytes, low_latency_mode))

    @staticmethod
    def set_num_sms(new_num_sms):
        assert new_num_sms % 2 == 0
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture():
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks):
        assert num_ranks in LIKED
        return Config(Buffer.num_sms, 6, 256, 6, 128)

    @staticmethod
    def get_combine_config(num_ranks):
        assert num_ranks in LIKED
        return Config(Buffer.num_sms, 4, 256, 6, 128)

    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        assert topk_idx.dim() == 2 and topk_idx.is_contiguous() and topk_idx.dtype == topk_idx_t and num_experts > 0
        self._beside(previous_event, async_finish, allocate_on_comm_stream)
        own = num_experts // self.size
        ranks = torch.where(topk_idx >= 0, topk_idx // own, -1)
        inside = torch.stack([(ranks == rank).any(1) for rank in range(self.size)], 1)
        each = torch.stack([(topk_idx == expert).sum() for expert in range(num_experts)]).int()
        return inside.sum(0).int(), None, each, inside, EventOverlap(EventHandle())

    def dispatch(
        self,
        x,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        expert_alignment=1,
        num_worst_tokens=0,
        config=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        assert self.num_nvl_bytes > 0 and not self.low_latency_mode
        assert handle is None and expert_alignment == 1 and num_worst_tokens == 0 and isinstance(config, Config)
        assert x.dim() == 2 and x.is_contiguous() and x.dtype == torch.bfloat16 and x.shape[1] % 16 == 0
        assert len(x) > 0, "tested with tokens alone"
        assert is_token_in_rank.dtype == torch.bool and is_token_in_rank.shape == (len(x), self.size)
        assert num_tokens_per_rank.dtype == num_tokens_per_expert.dtype == torch.int32
        assert topk_idx.shape == topk_weights.shape and topk_weights.dtype == torch.float32
        assert topk_idx.is_contiguous() and topk_weights.is_contiguous() and topk_idx.shape[1] <= 32
        self._beside(previous_event, async_finish, allocate_on_comm_stream)
        own = len(num_tokens_per_expert) // self.size
        parts = []
        for rank in range(self.size):
            tokens = is_token_in_rank[:, rank].nonzero().flatten()
            local = topk_idx[tokens] - rank * own
            there = (local >= 0) & (local < own)
            shares = torch.where(there, topk_weights[tokens], 0.0)
            parts.append((tokens, x[tokens].clone(), torch.where(there, local, -1), shares))
        came = self.exchange("dispatch", parts, "DeepEP error: CPU recv timeout")
        tokens, rows, experts, weights = (list(column) for column in zip(*came, strict=True))
        handle = [len(each) for each in tokens], tokens, len(x)
        rows, experts, weights = torch.cat(rows), torch.cat(experts), torch.cat(weights)
        counts = [int((experts == expert).sum()) for expert in range(own)]
        event = EventOverlap(EventHandle())
        results = event.later(rows), event.later(experts), event.later(weights)
        return *results, counts, handle, event.known(async_finish)

    def combine(
        self,
        x,
        handle,
        topk_weights=None,
        bias=None,
        config=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        assert x.dim() == 2 and x.is_contiguous() and x.dtype == torch.bfloat16
        assert topk_weights is None and bias is None and isinstance(config, Config)
        self._beside(previous_event, async_finish, allocate_on_comm_stream)
        sizes, tokens, count = handle
        assert len(x) == sum(sizes)
        parts = list(zip(tokens, x.clone().split(sizes), strict=True))
        receive = self.post("combine", parts)
        sums = torch.full((count, x.shape[1]), float("nan"), dtype=torch.bfloat16)

        def finish():
            whole = torch.zeros(sums.shape)
            for places, rows in receive("CUDA error: unspecified launch failure"):
                whole[places] += rows.float()
            sums.copy_(whole)

        return sums, None, EventOverlap(EventHandle(finish)).known(async_finish)

    def destroy(self):
        self.leave()

    def _beside(self, previous_event, async_finish, allocate_on_comm_stream):
        assert async_finish == allocate_on_comm_stream == (previous_event is not None)
        assert previous_event is None or isinstance(previous_event, EventOverlap), "not an EventHandle"
