"""How long a tick takes when nothing but decoding happens."""

from __future__ import annotations

import time

from stepwell.builtin.sim import SimConfig
from stepwell.engine.actions import Launch


def decode_ticks(World, rows, ticks=200, page=16, max_steps=1):
    """CPU seconds of each of `ticks` ticks with so many requests in the middle of their answers."""
    sim = SimConfig(verify=False, eos_every=0, context=100_000, token_bytes=8, max_steps=max_steps)
    w = World(sim, device=rows * 200, page=page, max_running=rows, audit=False)
    for number in range(rows):
        prompt = bytes([number % 251, number // 251]) * (40 + number % 16)
        w.submit(prompt.decode("latin-1"), max_tokens=100_000 // page if max_steps > 1 else ticks + 200)
    w.turn()
    while w.brain.waiting or any(row.tokens is not None for row in w.plans[-1].rows):
        w.turn()
    w.turn(5)
    spent = []
    for _ in range(ticks):
        events, w.news = w.news, []
        begin = time.thread_time()
        w.actions = w.brain.tick(float(w.turns), events)
        spent.append(time.thread_time() - begin)
        for action in w.actions:
            if isinstance(action, Launch):
                w.steps.append(w.runner.launch(action.plan))
        w._land()
    assert all(len(plan.rows) == rows for plan in w.plans[-3:])
    return sorted(spent)


def test_256_running_requests_cost_less_than_a_millisecond_a_step(world):
    spent = decode_ticks(world, 256)
    mean = sum(spent) / len(spent)
    print(f"256 rows: mean {mean * 1e6:.0f} us, median {spent[len(spent) // 2] * 1e6:.0f} us a tick")
    assert mean < 1e-3
