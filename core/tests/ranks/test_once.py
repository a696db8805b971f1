"""What all ranks hold alike goes to host and storage once; what each has a part of, part by part: the same totals."""

from __future__ import annotations

import time

import pytest

import stepwell

PROMPTS = [[(11 * at + 37 * number) % 200 for at in range(30 + 7 * number)] for number in range(3)]


def moved(ranks: int, heads: int) -> tuple[float, float, list[tuple[int, ...]]]:
    """Bytes saved to host and stored, once all is at rest, and the answers."""
    with stepwell.Engine(
        runner={"use": "sim", "heads": heads},
        cache={"page_size": 4, "device_pages": 64, "host_pages": 128, "head_shards": max(1, heads)},
        write={"use": "write_through"},
        storage={"use": "memory"},
        ranks={"tp": ranks},
    ) as engine:
        answers = [engine.generate(prompt, max_tokens=6, ignore_eos=True).tokens for prompt in PROMPTS]
        until, before = time.monotonic() + 10, (0.0, 0.0)
        while time.monotonic() < until:
            engine.drain(10)
            stats = engine.stats()
            found = float(str(stats["bytes_saved"])), float(str(stats["bytes_stored"]))
            if found == before and found[1] > 0:
                break
            before = found
            time.sleep(0.1)
        return *found, [tuple(answer) for answer in answers]


@pytest.mark.parametrize("heads", [1, 4])
def test_as_many_bytes_are_saved_and_stored_at_any_number_of_ranks(heads: int) -> None:
    one = moved(1, heads)
    assert one[0] == one[1] > 0
    for ranks in (2, 4):
        assert moved(ranks, heads) == one, f"{ranks} ranks"
