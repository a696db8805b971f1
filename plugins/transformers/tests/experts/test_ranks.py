"""Two ranks, processes over gloo, behind the whole engine: what they say is what transformers' generate says."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepwell

pytest.importorskip("stepwell_file")

ANSWER, PAGE = 8, 4
SWA = {"groups": {"swa": {"device_pages": 40, "host_pages": 60}}}


def prompts(seed: int, count: int = 6) -> list[list[int]]:
    """Prompts of many lengths; most share a beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 300) for _ in range(90)]
    return [
        shared[: rng.choice([0, 17, 48, 90])]
        + [rng.randrange(3, 300) for _ in range(rng.choice([1, 5, 33, 70]) + number)]
        for number in range(count)
    ]


def engine(folder: Path, pages: Path, cache: dict[str, Any], **runner: Any) -> stepwell.Engine:
    settings: dict[str, Any] = {
        "runner": {"use": "transformers", "model": str(folder), "device": "cpu", "dtype": "float32", **runner},
        "cache": {"page_size": PAGE, "device_pages": 64, "host_pages": 240, **cache},
        "write": {"use": "write_through"},
        "storage": {"use": "file", "path": str(pages), "gib": 0.1},
        "prefetch": {"use": "wait_complete"},
        "engine": {"chunk": 24},
        "ranks": {"tp": 2},
    }
    return stepwell.Engine(**settings)


AUTO = {"use": "auto", "normal": {"use": "collective"}, "low_latency": {"use": "collective-low-latency"}}


@pytest.mark.parametrize(
    ("family", "cache", "runner"),
    [
        ("gpt-oss", SWA, {"dispatch": {"use": "collective-low-latency", "capacity": 5}}),
        ("deepseek-v3", {}, {"dispatch": AUTO, "experts": {"spare": 2}}),
    ],
)
def test_greedy_answers_equal_generate(
    family: str,
    cache: dict[str, Any],
    runner: dict[str, Any],
    folder_of: Callable[[str], Path],
    truth: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Chunks of prompts beside decodes, evictions, pages from host and storage."""
    folder, asked = folder_of(family), prompts(len(family))
    with engine(folder, tmp_path / "pages", cache, **runner) as served, ThreadPoolExecutor(4) as pool:

        def ask(prompt: list[int]) -> None:
            done = served.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
            truth(folder, prompt, ANSWER).check(done.tokens)

        ask(asked[0])
        for _ in range(2):
            list(pool.map(ask, asked))
        stats = served.stats()
    assert stats["cached_device"] + stats["cached_host"] + stats["cached_storage"] > 0
