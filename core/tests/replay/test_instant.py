"""`--instant`: exactly the hit tokens of leaf-LRU over blocks, as known for a published trace and as told by a twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.replay import instant
from stepwell.replay.trace import Arrival, load

from .conftest import conversations, refused, replay, write

KNOWN = {2048: 3_833_192, 16_384: 18_940_960, 65_536: 26_055_540}
"""Hit tokens over the last half of the conversation trace, by capacity in blocks."""


def leaf_lru(requests: list[tuple[list[int], int]], capacity: int, block: int) -> list[int]:
    """Hit tokens of each request, slowly: a block is its path; the oldest block without a cached child leaves."""
    used: dict[tuple[int, ...], int] = {}
    clock, hits = 0, []
    for ids, length in requests:
        path = [tuple(ids[: at + 1]) for at in range(len(ids))]
        known = 0
        while known < len(path) and path[known] in used:
            clock += 1
            used[path[known]] = clock
            known += 1
        hits.append(sum(min(block, length - block * at) for at in range(known)))
        for one in path[known:]:
            if len(used) == capacity:
                parents = {other[:-1] for other in used}
                leaves = [other for other in used if other not in parents and other not in path]
                if not leaves:
                    break
                del used[min(leaves, key=used.__getitem__)]
            clock += 1
            used[one] = clock
    return hits


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[tuple[list[int], int]], int]:
    """Prompts over a small tree: an id tells its parent, as a hash of the prefix does."""
    block = draw(st.integers(1, 5))
    requests = []
    for steps in draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=40)):
        ids, node = [], 0
        for step in steps:
            node = 3 * node + step + 1
            ids.append(node)
        requests.append((ids, block * len(ids) - draw(st.integers(0, block - 1))))
    return requests, block


@settings(max_examples=150, deadline=None)
@given(traces(), st.integers(1, 24))
def test_every_hit_is_that_of_a_plain_simulation(drawn: tuple[list[tuple[list[int], int]], int], pages: int) -> None:
    requests, block = drawn
    arrivals = [
        Arrival(float(at), length, 1, np.array(ids, dtype=np.int32), block) for at, (ids, length) in enumerate(requests)
    ]
    right = leaf_lru(requests, pages, block)
    found = instant.run(arrivals, pages)
    half = len(requests) // 2
    assert (found.all.device, found.last_half.device) == (sum(right), sum(right[half:]))
    assert found.all.input_tokens == sum(length for _, length in requests)


def test_the_command_agrees_with_the_plain_simulation(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", conversations(300))
    requests = [(arrival.ids.tolist(), arrival.input_length) for arrival in load(path)]
    for pages in (8, 60, 5000):
        document = replay(path, "--instant", "--block-tokens", "512", sets=[f"cache.device_pages={pages}"])
        right = leaf_lru(requests, pages, 512)
        assert document["all"]["hit_tokens"] == {"device": sum(right), "host": 0, "storage": 0}
        assert document["last_half"]["hit_tokens"]["device"] == sum(right[150:])
        assert document["setup"] == {"device_pages": pages, "block_tokens": 512, "evict": "lru"}


def test_any_eviction_policy_can_be_tried(trace: Path) -> None:
    document = replay(trace, "--instant", sets=["cache.device_pages=60", "evict.use=lru"])
    assert document == {**replay(trace, "--instant", sets=["cache.device_pages=60"]), "wall_s": document["wall_s"]}
    assert "nothing installed offers it" in refused(trace, "--instant", sets=["cache.device_pages=60", "evict.use=x"])


def test_the_size_has_to_be_said(trace: Path) -> None:
    assert "--set cache.device_pages=N" in refused(trace, "--instant")


@pytest.mark.parametrize("pages", KNOWN)
def test_known_right_values(published: Path, pages: int) -> None:
    path = published / "mooncake_conversation_trace.jsonl"
    document = replay(path, "--block-tokens", "512", "--instant", sets=[f"cache.device_pages={pages}"])
    assert document["last_half"]["input_tokens"] == 67_915_607
    assert document["last_half"]["hit_tokens"] == {"device": KNOWN[pages], "host": 0, "storage": 0}
