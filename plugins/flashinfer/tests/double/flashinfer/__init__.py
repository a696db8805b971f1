"""A double of the library: its wrappers with the arguments that the plugin uses, computed one query at a time.

Stricter than the library, which reads beside its arrays where numbers are wrong. In its graph mode everything a run
needs is in the buffers that were handed over, as a captured kernel finds it there.
"""

import torch

DTYPES = (torch.float16, torch.bfloat16)


def _numbers(tensor, size, low, high, what):
    assert tensor.dtype == torch.int32 and tensor.dim() == 1 and tensor.is_contiguous(), what
    assert len(tensor) == size, f"{what} has {len(tensor)} entries, not {size}"
    assert size == 0 or (int(tensor.min()) >= low and int(tensor.max()) <= high), f"{what} is out of range: {tensor}"


def _ends(tensor, rows, what):
    _numbers(tensor, rows + 1, 0, 2**31 - 1, what)
    assert tensor[0] == 0 and bool((tensor[1:] > tensor[:-1]).all()), f"{what} has empty rows: {tensor}"


class _Wrapper:
    causal = True
    names = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, backend="auto", **buffers):
        assert float_workspace_buffer.dtype == torch.uint8 and float_workspace_buffer.numel() >= 1 << 20
        assert kv_layout == "NHD" and backend in ("auto", "fa2", "fa3")
        assert set(buffers) == (set(self.names) if use_cuda_graph else set()), buffers
        assert all(buffer.dtype == torch.int32 for buffer in buffers.values())
        self.graph, self.asked = use_cuda_graph, None
        self.ends, self.pages, self.last = (buffers.get(name) for name in self.names[-3:])
        self.queries = buffers.get("qo_indptr_buf")
        self.rows = len(self.last) if use_cuda_graph else None

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        assert int_workspace_buffer.dtype == torch.uint8

    def tell(self, queries, ends, pages, last, heads, kv_heads, dim, page_size, asked):
        assert page_size >= 1 and heads % kv_heads == 0 and dim in (64, 128, 256)
        rows = len(last)
        _ends(ends, rows, "paged_kv_indptr")
        _ends(queries, rows, "qo_indptr")
        _numbers(pages, int(ends[-1]), 0, 2**31 - 1, "paged_kv_indices")
        _numbers(last, rows, 1, page_size, "paged_kv_last_page_len")
        lengths = (ends[1:] - ends[:-1] - 1) * page_size + last
        assert bool((lengths >= queries[1:] - queries[:-1]).all()), "a row has more queries than tokens"
        if self.graph:
            assert rows == self.rows, f"{rows} rows in a graph of {self.rows}"
            assert len(pages) <= len(self.pages), "more pages than the buffer holds"
            self.ends.copy_(ends)
            self.last.copy_(last)
            self.pages[: len(pages)].copy_(pages)
            if self.queries is None:
                self.queries = queries.clone()
            self.queries.copy_(queries)
        else:
            self.queries, self.ends, self.pages, self.last = (x.clone() for x in (queries, ends, pages, last))
        self.shape = heads, kv_heads, dim, page_size
        self.asked = self.judged(**asked)

    def judged(self, window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16", kv_data_type=None):
        assert isinstance(window_left, int) and window_left >= -1
        assert logits_soft_cap is None or logits_soft_cap > 0
        assert isinstance(sm_scale, float) and q_data_type in DTYPES and kv_data_type == q_data_type
        return window_left, logits_soft_cap, sm_scale, q_data_type

    def compute(self, query, cache, out, sinks=None):
        heads, kv_heads, dim, page_size = self.shape
        window, cap, scale, dtype = self.asked
        keys, values = cache
        assert query.dtype == keys.dtype == values.dtype == out.dtype == dtype
        assert keys.shape == values.shape and keys.stride() == values.stride()
        assert keys.shape[1:] == (page_size, kv_heads, dim) and query.stride(-1) == 1
        assert query.shape == out.shape == (int(self.queries[-1]), heads, dim)
        used = self.pages[: int(self.ends[-1])]
        assert int(used.max()) < len(keys), "a page that is not there"
        for row in range(len(self.last)):
            own = self.pages[self.ends[row] : self.ends[row + 1]].long()
            length = (len(own) - 1) * page_size + int(self.last[row])
            k, v = (side[own].flatten(0, 1)[:length].float() for side in (keys, values))
            first, end = int(self.queries[row]), int(self.queries[row + 1])
            for at in range(first, end):
                place = length - (end - at)
                low = max(place - window, 0) if window >= 0 else 0
                for head in range(heads):
                    kv = head // (heads // kv_heads)
                    scores = k[low : place + 1, kv] @ query[at, head].float() * scale
                    if cap is not None:
                        scores = cap * torch.tanh(scores / cap)
                    if sinks is not None:
                        scores = torch.cat([scores, sinks[head : head + 1]])
                    odds = torch.softmax(scores, 0)[: place + 1 - low]
                    out[at, head] = (odds @ v[low : place + 1, kv]).to(dtype)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, **more):
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, **more)
        self.tensor_cores = use_tensor_cores

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **asked):
        assert self.tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8), "no such kernel"
        queries = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        shape = num_qo_heads, num_kv_heads, head_dim, page_size
        self.tell(queries, indptr, indices, last_page_len, *shape, asked)

    def run(self, q, paged_kv_cache, *, out=None):
        return self.compute(q, paged_kv_cache, out)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    names = ("qo_indptr_buf", *_Wrapper.names)

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        *,
        causal=False,
        **asked,
    ):
        assert causal
        shape = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self.tell(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, *shape, asked)

    def run(self, q, paged_kv_cache, *, out=None):
        return self.compute(q, paged_kv_cache, out)


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
        head_dim_qk=128,
        head_dim_vo=128,
        window_left=-1,
        **more,
    ):
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, **more)
        self.made = q_data_type, kv_data_type, head_dim_qk, head_dim_vo, window_left

    def run(self, q, paged_kv_cache, sink, sm_scale, *, out=None):
        window, cap, scale, dtype = self.asked
        assert cap is None and sm_scale == scale and self.made == (dtype, dtype, q.shape[2], q.shape[2], window)
        assert sink.dtype == torch.float32 and sink.shape == (q.shape[1],)
        return self.compute(q, paged_kv_cache, out, sink)
