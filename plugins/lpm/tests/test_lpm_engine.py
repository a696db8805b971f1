"""In an engine whose device holds a part of what comes."""

import pytest

import stepwell


@pytest.mark.parametrize("use", ["lpm", "dfs-weight", "shortest-prefill-first"])
def test_everybody_is_answered_and_every_decision_can_be_used(use):
    settings = {"cache": {"device_pages": 24, "host_pages": 64, "page_size": 4}, "engine": {"max_running": 4}}
    with stepwell.Engine(runner="sim", schedule=use, **settings) as engine:
        streams = [
            engine.stream(f"{'shared ' * (number % 4)}question {number}", max_tokens=8, ignore_eos=True)
            for number in range(24)
        ]
        for stream in streams:
            assert list(stream)
        stats = engine.stats()
        engine.audit()
    assert {stream.completion.finish_reason for stream in streams} == {"length"}
    assert stats["policy_faults"] == 0
