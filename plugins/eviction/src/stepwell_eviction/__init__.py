"""Eviction policies beyond LRU: `[evict] use = "lfu"`, `"slru"`, `"s3fifo"` or `"priority"`."""

from collections.abc import Iterable

from stepwell import EvictionPolicy, Offer, hookimpl
from stepwell_eviction.lfu import Lfu, LfuConfig
from stepwell_eviction.priority import Priority
from stepwell_eviction.s3fifo import S3Fifo, S3FifoConfig
from stepwell_eviction.slru import Slru, SlruConfig


@hookimpl
def stepwell_evictors() -> Iterable[Offer[EvictionPolicy]]:
    """Each is pure bookkeeping; a new instance serves each group and tier."""
    return [
        Offer("lfu", Lfu, LfuConfig),
        Offer("slru", Slru, SlruConfig),
        Offer("s3fifo", S3Fifo, S3FifoConfig),
        Offer("priority", Priority),
    ]
