"""In an engine whose device holds a part of what comes."""

import stepwell


def test_everybody_is_answered_and_every_decision_can_be_used():
    settings = {"cache": {"device_pages": 24, "host_pages": 64, "page_size": 4}, "engine": {"max_running": 4}}
    schedule = {"use": "route-key", "max_keys": 1, "within": "cached", "granularity": 4}
    with stepwell.Engine(runner="sim", schedule=schedule, **settings) as engine:
        streams = [
            engine.stream(
                f"what key {number % 4} asks, {number}", max_tokens=12, ignore_eos=True, routing_key="abc-"[number % 4]
            )
            for number in range(24)
        ]
        for stream in streams:
            assert list(stream)
        stats = engine.stats()
        engine.audit()
    assert {stream.completion.finish_reason for stream in streams} == {"length"}
    assert stats["policy_faults"] == 0
