"""The index against page-level leaf-LRU, on random traffic and on a published trace."""

import json
import os
import random
from array import array
from pathlib import Path

import pytest

from stepwell.cache.instant import InstantCache

NAME = "mooncake_conversation_trace.jsonl"
BLOCK = 512


def trace():
    here = Path(__file__).resolve()
    folders = [Path(os.environ["STEPWELL_TRACES"])] if "STEPWELL_TRACES" in os.environ else []
    folders += [parent / "shared" / "traces" for parent in here.parents]
    return next((folder / NAME for folder in folders if (folder / NAME).exists()), None)


class Leaves:
    """A block is a page; the least recent block without a cached child goes first. Slow and plain."""

    def __init__(self, pages):
        self.pages, self.cached, self.children, self.time = pages, {}, {}, 0

    def request(self, path):
        keys = [tuple(path[: i + 1]) for i in range(len(path))]
        hits = 0
        while hits < len(keys) and keys[hits] in self.cached:
            self.use(keys[hits])
            hits += 1
        own = set(keys)
        for key in keys[hits:]:
            if len(self.cached) >= self.pages:
                leaves = [k for k in self.cached if not self.children.get(k) and k not in own]
                if not leaves:
                    break
                gone = min(leaves, key=self.cached.__getitem__)
                del self.cached[gone]
                self.children[gone[:-1]] -= 1
            self.use(key)
            self.children[key[:-1]] = self.children.get(key[:-1], 0) + 1
        return hits

    def use(self, key):
        self.time += 1
        self.cached[key] = self.time


@pytest.mark.parametrize("seed", range(12))
def test_equals_leaf_lru_over_pages(seed):
    draw = random.Random(seed)
    pages = draw.choice((3, 10, 40, 100))
    fast, slow = InstantCache(pages, 1), Leaves(pages)
    for _ in range(400):
        path = [draw.randrange(3) for _ in range(draw.randrange(1, 12))]
        if draw.random() < 0.3:
            path = [7] * draw.randrange(1, 8) + path
        assert fast.request(array("i", path).tobytes()) == slow.request(path)


@pytest.mark.skipif(trace() is None, reason="no trace beside the repository; STEPWELL_TRACES may name its folder")
@pytest.mark.parametrize(("pages", "hits"), [(2048, 3_833_192), (16384, 18_940_960), (65536, 26_055_540)])
def test_known_right_values_of_the_conversation_trace(pages, hits):
    with trace().open() as file:
        requests = [json.loads(line) for line in file]
    cache = InstantCache(pages, 1)
    total = 0
    for number, request in enumerate(requests):
        hit = cache.request(array("i", request["hash_ids"]).tobytes())
        if number >= len(requests) // 2:
            total += min(hit * BLOCK, request["input_length"])
    assert total == hits
