"""The client library alone, the fastest way that it has for a size of page."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from stepwell import PageKey, PageViews, StepwellError
from stepwell_redis.config import RedisConfig
from stepwell_redis.server import pool_of

SMALL = 32 * 1024
"""Pages below this are put faster by MSET, others by a pipeline of SETs."""
GET_BYTES = 1 << 20
"""Bytes in one MGET; more let the client's buffer grow out of the processor's caches."""


class RedisNative:
    """MGET, MSET and pipelines of redis-py."""

    def __init__(self, config: RedisConfig) -> None:
        self._client = redis.Redis(connection_pool=pool_of(config, config.timeout_s))
        self._put: set[PageKey] = set()

    def put(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        buffers = pages.buffers()
        self._put.update(keys)
        if int(pages.sizes[0]) < SMALL:
            self._client.mset(dict(zip(keys, buffers, strict=True)))
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for key, page in zip(keys, buffers, strict=True):
                pipeline.set(key, page)
            pipeline.execute()

    def get(self, keys: Sequence[PageKey], into: PageViews) -> None:
        buffers = into.buffers()
        step = max(1, GET_BYTES // int(into.sizes[0]))
        for at in range(0, len(keys), step):
            values = self._client.mget(keys[at : at + step])
            if dropped := values.count(None):
                lost = f"Redis dropped {dropped} of {len(values)} pages that the round had put"
                raise StepwellError(f"{lost}; it needs room for 2 x --mib: raise its maxmemory or lower --mib")
            for page, value in zip(buffers[at : at + step], values, strict=True):
                page[:] = value

    def close(self) -> None:
        if self._put:
            self._client.unlink(*self._put)
        self._client.connection_pool.disconnect()
