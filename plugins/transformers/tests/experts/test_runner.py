"""One rank with a dispatcher says what transformers' own generate says: chunks beside decodes, rounds, and spares."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import Format
from stepwell_transformers.experts import ExpertsSettings

ANSWER = 6
LENGTHS = (40, 3, 17, 65)


@pytest.mark.parametrize(
    ("family", "format", "spare"),
    [
        ("mixtral", Format.SORTED, 0),
        ("qwen3-moe", Format.ONCE, 3),
        ("qwen2-moe", Format.MASKED, 0),
        ("gpt-oss", Format.ONCE, 0),
        ("deepseek-v3", Format.SORTED, 1),
    ],
)
def test_greedy_answers_equal_generate(
    family: str,
    format: Format,
    spare: int,
    folder_of: Callable[[str], Path],
    truth: Callable[..., Any],
    drive: Callable[..., Any],
    make_prompts: Callable[..., list[list[int]]],
    table: Any,
    table_part: Any,
) -> None:
    """Decodes by a dispatcher of their own, steps of many tokens in several rounds."""
    prompts: list[str] = []
    decodes: list[str] = []
    served = drive(
        folder_of(family),
        page_size=4,
        chunk=32,
        dispatch=table_part(table(1), format=format, capacity=20, calls=prompts),
        decode_dispatch=table_part(table(1), format=Format.MASKED, capacity=3, calls=decodes),
        experts=ExpertsSettings(spare),
    )
    asked = make_prompts(*LENGTHS, seed=5)
    prompts.clear()
    decodes.clear()
    for prompt, got in zip(asked, served.serve(asked, ANSWER, chunk=32, budget=48, stagger=2), strict=True):
        truth(folder_of(family), prompt, ANSWER).check(got)
    sent = [int(call.split()[1]) for call in prompts if "dispatch" in call]
    assert max(sent) == 20, "a larger step goes in rounds"
    assert {int(call.split()[1]) for call in decodes if "dispatch" in call} <= {1, 2, 3}
    assert decodes


def test_b113_what_is_too_much_for_a_dispatch_is_said_at_start(
    folder_of: Callable[[str], Path], drive: Callable[..., Any], table: Any, table_part: Any, caplog: Any
) -> None:
    """64 slots and chunks of 128."""
    with caplog.at_level(logging.INFO):
        drive(folder_of("mixtral"), chunk=128, dispatch=table_part(table(1), capacity=100))
    said = [record.getMessage() for record in caplog.records]
    assert "8 experts of 2 layers stand in 8 slots, 8 a rank; their tokens go through 'table'" in said
    assert any("'table' takes 100 tokens of a rank at once, and a step may have 192" in line for line in said)
