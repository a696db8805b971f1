"""`stepwell trace routing-keys`: the statistics that it states, and that its files are plain traces."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stepwell.cli import root
from stepwell.replay.keyed import Keyed
from stepwell.replay.trace import load

from .conftest import replay


def lines(**said: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Keyed(**{"requests": 4000, "keys": 20, "seed": 2, **said}).lines()]


def ran(*options: str) -> Any:
    return CliRunner().invoke(root, ["trace", "routing-keys", *options])


def test_keys_follow_zipf() -> None:
    drawn = Keyed(4000, 20, zipf=1.2)
    counts = Counter(line["routing_key"] for line in lines(zipf=1.2))
    chances = drawn.chances()
    assert chances[0] / chances[9] == pytest.approx(10**1.2)
    for number, chance in enumerate(chances, 1):
        error = np.sqrt(4000 * chance * (1 - chance))
        assert counts[f"key-{number}"] == pytest.approx(4000 * chance, abs=4.5 * error)
    even = Counter(line["routing_key"] for line in lines(zipf=0.0))
    assert max(even.values()) < 1.5 * min(even.values())


def test_arrivals_are_poisson() -> None:
    at = np.array([line["timestamp"] for line in lines(rate=8.0)])
    gaps = np.diff(at) / 1e3
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.07)
    assert gaps.std() == pytest.approx(1 / 8, rel=0.1)


def test_lengths_have_mean_and_spread() -> None:
    drawn = lines(input=900, output=40, spread=0.6, shared=300)
    own = np.array([line["input_length"] - 300 for line in drawn])
    said = np.array([line["output_length"] for line in drawn])
    for found, mean in ((own, 900), (said, 40)):
        assert found.mean() == pytest.approx(mean, rel=0.05)
        assert found.std() == pytest.approx(0.6 * mean, rel=0.12)
        assert found.min() >= 1
    assert {line["output_length"] for line in lines(output=40, spread=0.0)} == {40}


def test_whole_blocks_of_a_key_are_shared_and_nothing_else() -> None:
    by_key = defaultdict(set)
    seen: Counter[int] = Counter()
    for line in lines(shared=700, block=128, input=300):
        ids = line["hash_ids"]
        assert len(ids) == -(-line["input_length"] // 128)
        by_key[line["routing_key"]].add(tuple(ids[:5]))
        seen.update(ids[5:])
    assert all(len(starts) == 1 for starts in by_key.values())
    assert len({starts.pop() for starts in by_key.values()}) == 20
    assert set(seen.values()) == {1}


def test_tenants_and_priorities_only_where_asked() -> None:
    assert set(lines()[0]) == {"timestamp", "input_length", "output_length", "hash_ids", "routing_key"}
    drawn = lines(tenants=4, urgent=0.25)
    tenants = Counter(line["tenant"] for line in drawn)
    assert set(tenants) == {f"tenant-{number}" for number in range(1, 5)}
    assert min(tenants.values()) > 850
    assert sum(line["priority"] for line in drawn) / 4000 == pytest.approx(0.25, abs=0.035)


def test_a_seed_writes_the_same_file_and_a_replay_takes_it(tmp_path: Path) -> None:
    options = ("--requests", "300", "--keys", "9", "--shared", "1024", "--tenants", "2", "--urgent", "0.5")
    told = ran("a.jsonl", *options, "--seed", "4")
    assert told.exit_code == 0
    assert told.output.startswith("wrote a.jsonl: 300 requests over ")
    ran("b.jsonl.gz", *options, "--seed", "4")
    ran("c.jsonl", *options)
    plain = (tmp_path / "a.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()) == plain != (tmp_path / "c.jsonl").read_bytes()
    first = load(tmp_path / "a.jsonl")[0]
    assert first.routing_key is not None
    assert first.routing_key.startswith("key-")
    assert first.tenant in ("tenant-1", "tenant-2")
    document = replay(tmp_path / "a.jsonl", sets=["replay.devices=1"])
    assert document["finished"] == 300
    assert document["all"]["hit_tokens"]["device"] >= (300 - 9) * 1024 * 0.9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["no/t.jsonl"], "no/t.jsonl cannot be written (No such file or directory)"),
        (["t.jsonl", "--requests", "0"], "--requests"),
        (["t.jsonl", "--zipf", "nan"], "nan is no number to count with"),
        (["t.jsonl", "--rate", "0"], "--rate"),
        (["t.jsonl", "--urgent", "1.5"], "--urgent"),
        (["t.jsonl", "--keys", "100000", "--shared", "10000000"], "ids of blocks, and 1,073,741,824 is the most"),
    ],
)
def test_misuse_is_one_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    told = ran(*options)
    assert told.exit_code == 2
    assert words in told.output
    assert "Traceback" not in told.output
    assert not (tmp_path / "t.jsonl").exists()
