"""In an engine whose device holds a part of what comes."""

import stepwell


def test_everybody_is_answered_and_every_decision_can_be_used():
    settings = {"cache": {"device_pages": 24, "host_pages": 64, "page_size": 4}, "engine": {"max_running": 4}}
    schedule = {"use": "fair", "preempt_over": 1, "age_s": 0.5, "weights": {"gold": 3}}
    with stepwell.Engine(runner="sim", schedule=schedule, **settings) as engine:
        streams = [
            engine.stream(
                f"what tenant {number % 3} asks for the {number}th time",
                max_tokens=12,
                ignore_eos=True,
                priority=number // 8,
                tenant=("gold", "tin", None)[number % 3],
            )
            for number in range(24)
        ]
        for stream in streams:
            assert list(stream)
        stats = engine.stats()
        engine.audit()
    assert {stream.completion.finish_reason for stream in streams} == {"length"}
    assert stats["policy_faults"] == 0
