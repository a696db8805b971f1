"""Memory storage, the prefetch policies and the sinks that come with core."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zmq

from stepwell.abc.prefetch import FetchProgress
from stepwell.abc.sink import PagesRemoved, PagesStored, TierCleared
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.builtin.prefetch import BestEffort, PrefetchConfig, Timeout, TimeoutConfig, WaitComplete, WaitConfig
from stepwell.builtin.sinks import JsonlConfig, JsonlSink, ZmqConfig, ZmqSink
from stepwell.types import DONE, MISSING, Failed, PageViews, Tier

PAGE = 4096


def views(count: int, fill: int = 0, size: int = PAGE) -> PageViews:
    raw = np.full(count * size, fill, np.uint8)
    return PageViews.of(memoryview(raw), int(raw.ctypes.data), range(0, count * size, size), size)


def key(number: int) -> bytes:
    return number.to_bytes(40, "big")


def test_memory_keeps_its_limit_and_drops_the_least_recently_used() -> None:
    storage = MemoryStorage(MemoryConfig(gib=4 * PAGE / 2**30), None)  # type: ignore[arg-type]
    assert storage.write([key(n) for n in range(4)], views(4)) == [DONE] * 4
    assert storage.read([key(0)], views(1)) == [DONE]
    assert storage.write([key(4)], views(1)) == [DONE]
    assert storage.contains([key(n) for n in range(5)]) == [True, False, True, True, True]
    storage.delete([key(0), key(0), key(99)])
    assert storage.write([key(5)], views(1)) == [DONE]
    assert storage.contains([key(n) for n in (2, 3, 4, 5)]) == [True] * 4


def test_memory_refuses_what_does_not_fit_and_what_has_another_size() -> None:
    storage = MemoryStorage(MemoryConfig(gib=PAGE / 2**30), None)  # type: ignore[arg-type]
    assert isinstance(storage.write([key(1)], views(1, size=2 * PAGE))[0], Failed)
    storage.write([key(1)], views(1, 7))
    assert isinstance(storage.read([key(1)], views(1, size=512))[0], Failed)
    assert storage.read([key(2)], views(1)) == [MISSING]


def test_memory_keeps_copies() -> None:
    storage = MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]
    pages = views(1, 7)
    storage.write([key(1)], pages)
    pages.buffers()[0][:] = bytes(PAGE)
    into = views(1)
    storage.read([key(1)], into)
    assert bytes(into.buffers()[0]) == bytes([7]) * PAGE


def progress(waited_s: float, done: int, wanted: int) -> FetchProgress:
    return FetchProgress(waited_s, done, wanted, 16)


def test_best_effort_never_waits() -> None:
    policy = BestEffort(PrefetchConfig(threshold=32), None)  # type: ignore[arg-type]
    assert not policy.start(31) and policy.start(32)
    assert policy.stop(progress(0, 0, -1)) and policy.stop(progress(0, 0, 9))


def test_b063_wait_complete_waits_for_the_plan_and_for_all_of_it() -> None:
    policy = WaitComplete(WaitConfig(), None)  # type: ignore[arg-type]
    assert [policy.stop(progress(1, done, wanted)) for done, wanted in ((0, -1), (0, 8), (4, 8), (8, 8))] == [
        False,
        False,
        False,
        True,
    ]
    assert policy.stop(progress(60, 4, 8)), "storage that hangs costs hits, not answers"


def test_timeout_grows_with_what_is_wanted_up_to_its_cap() -> None:
    policy = Timeout(TimeoutConfig(base_s=1, per_ki_token_s=0.5, cap_s=3), None)  # type: ignore[arg-type]
    pages = 128  # 2 Ki tokens: 1 + 2 x 0.5 s
    assert not policy.stop(progress(1.9, 3, pages)) and policy.stop(progress(2.0, 3, pages))
    assert policy.stop(progress(0, pages, pages))
    assert not policy.stop(progress(2.9, 0, 10_000)) and policy.stop(progress(3, 0, 10_000))
    assert not policy.stop(progress(0.9, 0, -1)) and policy.stop(progress(1, 0, -1))


def test_b154_a_threshold_counts_whole_pages_and_says_so() -> None:
    config, notes = PrefetchConfig(threshold=8192).in_pages(256)
    assert (config.threshold, notes) == (8192, [])
    config, notes = PrefetchConfig(threshold=100).in_pages(256)
    assert config.threshold == 256
    assert notes == ["prefetch.threshold: 100 is not a multiple of cache.page_size = 256; 256 is used"]
    config, notes = PrefetchConfig().in_pages(256)
    assert (config.threshold, notes) == (256, []), "nobody had said otherwise"
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="threshold"):
            PrefetchConfig(threshold=wrong)
    with pytest.raises(ValueError, match="cap_s"):
        WaitConfig(cap_s=-1)


EVENTS = [
    PagesStored(Tier.DEVICE, "full", (key(1), key(2)), None, 16),
    PagesRemoved(Tier.HOST, "full", (key(1),)),
    TierCleared(Tier.DEVICE),
]
PLAIN = [
    {
        "event": "stored",
        "tier": "device",
        "group": "full",
        "keys": [key(1).hex(), key(2).hex()],
        "parent": None,
        "page_tokens": 16,
    },
    {"event": "removed", "tier": "host", "group": "full", "keys": [key(1).hex()]},
    {"event": "cleared", "tier": "device"},
]


def test_events_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    for batch in (EVENTS[:2], EVENTS[2:]):
        sink = JsonlSink(JsonlConfig(path), None)  # type: ignore[arg-type]
        sink.take(batch)
        sink.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == PLAIN


def test_events_over_zeromq(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/events"
    sink = ZmqSink(ZmqConfig(address), None)  # type: ignore[arg-type]
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")
    subscriber.connect(address)
    while not subscriber.poll(50):  # until the subscription has arrived
        sink.take(EVENTS)
    first = subscriber.recv_multipart()
    sink.take(EVENTS)
    second = subscriber.recv_multipart()
    assert json.loads(first[2]) == json.loads(second[2]) == PLAIN
    assert int.from_bytes(second[1], "big") == int.from_bytes(first[1], "big") + 1
    subscriber.close(0)
    context.term()
    sink.close()
