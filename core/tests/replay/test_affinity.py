"""Routing keys and experts: the stated model against drawing and counting, and what it makes of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from stepwell.replay.affinity import Affinity, Experts
from stepwell.schedule.presets import PRESETS

from .conftest import conversations, refused, replay, write

MODEL = Affinity(experts=24, chosen=3, affinity=0.7, favoured=6, seed=5)
MIXED = ("replay.preset=h200-qwen3-30b-a3b", "replay.devices=1")


def drawn(model: Affinity, tokens: Mapping[str | None, int], dice: np.random.Generator) -> int:
    """Experts that one step touches, by choosing them."""
    touched: set[int] = set()
    for key, count in tokens.items():
        for _ in range(count):
            among = model.experts
            if key is not None and dice.random() < model.affinity:
                touched.update(dice.choice(model.favours(key), model.chosen, replace=False).tolist())
            else:
                touched.update(dice.choice(among, model.chosen, replace=False).tolist())
    return len(touched)


@pytest.mark.parametrize(
    "tokens", [{"a": 1}, {"a": 9}, {"a": 4, "b": 4, "c": 1}, {None: 6}, {"a": 3, None: 2}, {"a": 1, "b": 1, "d": 1}]
)
def test_the_mean_is_that_of_drawing(tokens: Mapping[str | None, int]) -> None:
    dice = np.random.default_rng(3)
    found = [drawn(MODEL, tokens, dice) for _ in range(1500)]
    error = np.std(found) / np.sqrt(len(found))
    assert Experts(MODEL).touched(tokens) == pytest.approx(np.mean(found), abs=4 * error + 1e-9)


def test_two_tokens_counted_out() -> None:
    """Of 5 experts 2 a token, every pair of choices with its probability."""
    model = Affinity(experts=5, chosen=2, affinity=0.6, favoured=3)

    def choices(key: str) -> list[tuple[frozenset[int], float]]:
        anywhere = [(frozenset(some), 0.4 / 10) for some in combinations(range(5), 2)]
        return anywhere + [(frozenset(some), 0.6 / 3) for some in combinations(model.favours(key).tolist(), 2)]

    mean = sum(p * q * len(one | other) for (one, p), (other, q) in product(choices("x"), choices("y")))
    assert Experts(model).touched({"x": 1, "y": 1}) == pytest.approx(mean)


def test_chances_are_those_of_the_model() -> None:
    chances = MODEL.chances("a")
    assert chances.sum() == pytest.approx(MODEL.chosen)
    rest = np.delete(chances, MODEL.favours("a"))
    assert len(rest) == 18
    assert rest == pytest.approx(np.full(18, 0.3 * 3 / 24))
    assert MODEL.chances(None) == pytest.approx(np.full(24, 3 / 24))


def test_a_key_favours_the_same_experts_everywhere_and_another_key_others() -> None:
    keys = [f"key-{number}" for number in range(400)]
    first = [MODEL.favours(key).tolist() for key in keys]
    assert first == [replace(MODEL, affinity=0.1).favours(key).tolist() for key in keys]
    assert all(len(set(some)) == 6 for some in first)
    assert first != [replace(MODEL, seed=6).favours(key).tolist() for key in keys]
    often = np.bincount(np.concatenate(first), minlength=24)
    assert often == pytest.approx(np.full(24, 100), abs=45)  # five standard deviations


def test_without_affinity_it_is_even_choice_and_with_all_of_it_the_favoured_ones() -> None:
    even = Experts(replace(MODEL, affinity=0.0))
    for count in (1, 2, 7, 500):
        assert even.touched({"a": count}) == pytest.approx(24 * (1 - (1 - 3 / 24) ** count))
    sure = Experts(Affinity(experts=24, chosen=6, affinity=1.0, favoured=6))
    assert sure.touched({"a": 1}) == sure.touched({"a": 50}) == pytest.approx(6)
    both = set(sure.affinity.favours("a")) | set(sure.affinity.favours("b"))
    assert sure.touched({"a": 50, "b": 1}) == pytest.approx(len(both))
    assert sure.touched({}) == 0


def test_experts_may_be_divided_anew() -> None:
    timing = PRESETS["h200-qwen3-30b-a3b"]
    assert timing.parameters == pytest.approx(3.0e9, rel=0.02)  # 3.3e9 with the embeddings, of which none multiplies
    assert timing.weight_bytes + timing.expert_bytes == pytest.approx(61.1e9 - 2 * 2048 * 151_936, rel=0.01)
    more = timing.with_experts(256, 8)
    assert (more.experts, more.expert_share, more.expert_bytes) == (256, 1 / 32, timing.expert_bytes)
    assert timing.parameters - more.parameters == pytest.approx(timing.expert_parameters / 32)


def keyed(path: Path, key: Mapping[int, str], count: int = 32) -> Path:
    """Requests that come at once, one after the other with the keys given by remainder."""
    lines = [
        {**line, "timestamp": 0, "output_length": 60, "routing_key": key[number % len(key)]}
        for number, line in enumerate(conversations(count))
    ]
    return write(path, lines)


def test_a_batch_of_one_key_reads_less_and_goes_faster(tmp_path: Path) -> None:
    sets = (*MIXED, "replay.affinity=0.9", "cache.device_pages=1000")
    one = replay(keyed(tmp_path / "one.jsonl", {0: "a"}), sets=sets)
    many = replay(keyed(tmp_path / "many.jsonl", dict(enumerate("abcdefgh"))), sets=sets)
    plain = replay(keyed(tmp_path / "plain.jsonl", {0: "a"}), sets=sets[:2])
    for field in ("decode_experts", "experts_per_step", "decode_step_s"):
        assert 0 < one[field] < many[field] < plain[field]
    assert one["decode_experts"] >= 16 * 0.9
    assert one["setup"]["experts"] == {"experts": 128, "chosen": 8, "affinity": 0.9, "favoured": 16, "seed": 0}


def test_decode_steps_are_charged_for_their_experts(tmp_path: Path) -> None:
    """One request alone: each step reads what one token chooses, and that is its time."""
    line = {"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [7], "routing_key": "k"}
    document = replay(write(tmp_path / "t.jsonl", [line]), sets=(*MIXED, "replay.affinity=0.5"))
    timing = PRESETS["h200-qwen3-30b-a3b"]
    assert document["decode_experts"] == pytest.approx(8)
    read = timing.weight_bytes + timing.expert_bytes / 16 + timing.kv_bytes * 513
    assert document["decode_step_s"] == pytest.approx(timing.overhead + read / timing.bandwidth, rel=1e-6)
    half = replay(tmp_path / "t.jsonl", sets=(*MIXED, "replay.experts=256", "replay.experts_per_token=4"))
    assert half["decode_experts"] == pytest.approx(4)
    assert half["decode_step_s"] < document["decode_step_s"]


def test_a_dense_model_has_no_experts(trace: Path) -> None:
    document = replay(trace, "--limit", "20")
    assert (document["experts_per_step"], document["decode_experts"]) == (0, 0)
    assert "experts" not in document["setup"]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["replay.affinity=1.2"], "affinity"),
        (["replay.affinity=nan"], "affinity"),
        (["replay.affinity=0.5"], "h200-llama8b has no experts; take replay.preset=h200-qwen3-30b-a3b"),
        (["replay.experts=64"], "h200-llama8b has no experts"),
        (["replay.preset=polynomial", "replay.favoured=8"], "the preset polynomial has no experts"),
        (
            [*MIXED, "replay.experts=4"],
            "(--set replay.experts): a token cannot choose 8 of 4 experts; see replay.experts_per",
        ),
        ([*MIXED, "replay.experts_per_token=300"], "experts_per_token): a token cannot choose 300 of 128 experts"),
        ([*MIXED, "replay.favoured=4"], "a key cannot favour 4 experts, where a token chooses 8 of 128"),
        ([*MIXED, "replay.favoured=129"], "a key cannot favour 129 experts"),
        ([*MIXED, "replay.experts=0"], "replay.experts (--set replay.experts): 0 is less than 1"),
        ([*MIXED, "replay.experts=100000"], "100000 is more than can be meant"),
        ([*MIXED, "replay.affinity_seed=-1"], "-1 is less than 0"),
    ],
)
def test_misuse_is_one_sentence(trace: Path, sets: list[str], words: str) -> None:
    assert words in refused(trace, sets=sets)
