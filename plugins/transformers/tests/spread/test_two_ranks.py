"""Two ranks, processes over gloo, behind the whole engine: what they say is what transformers' own generate says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepwell

pytest.importorskip("stepwell_file")

ANSWER = 10
PAGE = 4
POOLS = {
    "llama": {"device_pages": 64, "host_pages": 240},
    "gemma3": {
        "device_pages": 64,
        "host_pages": 240,
        "groups": {"swa": {"device_pages": 48, "host_pages": 60}},
    },
    "qwen3-moe": {"device_pages": 64, "host_pages": 240},
}
"""Dense, hybrid, experts; so little room that pages are evicted, and come back from host and storage."""


def prompts(seed: int, count: int = 8) -> list[list[int]]:
    """Prompts of many lengths; most share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 300) for _ in range(90)]
    return [
        shared[: rng.choice([0, 17, 48, 90])]
        + [rng.randrange(3, 300) for _ in range(rng.choice([1, 5, 33, 70]) + number)]
        for number in range(count)
    ]


def engine(folder: Path, pages: Path, ranks: int, kind: str) -> stepwell.Engine:
    settings: dict[str, Any] = {
        "runner": {"use": "transformers", "model": str(folder), "device": "cpu", "dtype": "float32"},
        "cache": {"page_size": PAGE, "head_shards": 2, **POOLS[kind]},
        "write": {"use": "write_through"},
        "storage": {"use": "file", "path": str(pages), "gib": 0.1},
        "prefetch": {"use": "wait_complete"},
        "engine": {"chunk": 24},
        "ranks": {"tp": ranks},
    }
    return stepwell.Engine(**settings)


class Served:
    """An engine of two ranks, whose storage has what an engine of one rank left there."""

    def __init__(self, kind: str, folder: Path, pages: Path, truth: Callable[..., Any]) -> None:
        self.kind, self.folder, self.pages, self._truth = kind, folder, pages, truth
        with engine(folder, pages, 1, kind) as one:
            self.early = self.begin(one, prompts(1)[-1])
        self.engine = engine(folder, pages, 2, kind)

    def ask(self, served: stepwell.Engine, prompt: list[int]) -> Any:
        """Greedy; right, or an error."""
        done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
        self._truth(self.folder, prompt, ANSWER).check(done.tokens)
        return done

    def begin(self, served: stepwell.Engine, prompt: list[int]) -> list[int]:
        """What its user says next in a conversation that begins so, all of it."""
        return [*prompt, *self.ask(served, prompt).tokens, 5, 6, 7]


@pytest.fixture(scope="module", params=POOLS)
def two(
    request: pytest.FixtureRequest,
    tiny: Callable[[str], Path],
    truth: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    served = Served(request.param, tiny(request.param), tmp_path_factory.mktemp("pages"), truth)
    yield served
    served.engine.close()


def test_two_ranks_read_what_one_has_stored(two: Served) -> None:
    assert two.ask(two.engine, two.early).cached.storage > 0


def test_many_at_a_time_get_the_answers_of_generate(two: Served) -> None:
    """Chunks of prompts beside decodes, evictions, pages from host and storage, three times over."""
    asked = prompts(2)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            list(pool.map(lambda prompt: two.ask(two.engine, prompt), asked))
    stats = two.engine.stats()
    assert stats["cached_device"] > 0
    assert stats["cached_host"] > 0


def test_what_is_sampled_is_the_same_on_both_ranks(two: Served) -> None:
    """Without a seed as well: an engine whose ranks disagree ends."""
    prompt = prompts(3)[0]
    for _ in range(2):
        assert len(two.engine.generate(prompt, max_tokens=20, temperature=1.0, ignore_eos=True).tokens) == 20
    seeded = [two.engine.generate(prompt, max_tokens=20, temperature=1.0, seed=3, ignore_eos=True).tokens for _ in "ab"]
    assert seeded[0] == seeded[1]


def test_one_rank_reads_what_two_have_stored(two: Served) -> None:
    late = two.begin(two.engine, prompts(4)[-1])
    two.engine.close()
    with engine(two.folder, two.pages, 1, two.kind) as one:
        assert two.ask(one, late).cached.storage > 0
