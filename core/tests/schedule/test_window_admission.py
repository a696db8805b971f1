"""Admission where the pool of windows is tiny: everybody gets through, alone or together, and hardly anybody twice."""

from __future__ import annotations

import random

import pytest

from stepwell.builtin.sim import SimConfig
from stepwell.cache.groups import group_of
from stepwell.types import Tier


def scenario(World, seed):
    """A world whose windows barely fit, full attention being ample; and requests with the turns at which they come."""
    draw = random.Random(seed)
    page = draw.choice((1, 2, 4, 16))
    windows = draw.choice(((6,), (8,), (20,), (20, 5), (33,)))
    full = draw.random() < 0.8
    sim = SimConfig(
        token_bytes=8,
        windows=windows,
        full=full,
        eos_every=0,
        chunk=draw.choice((page, 16, 40)),
        depth=draw.choice((1, 2, 3)),
        max_steps=draw.choice((1, 1, 8, 64)),
    )
    longest = 90
    pools = [group_of(group, page).runs_in(longest) for group in sim.groups]
    slack = draw.choice((0, 0, 1, 2))
    factor = draw.choice((1, 1, 2, 3))
    device = tuple(
        least * 5 if spec.name == "full" else least * factor + slack
        for spec, least in zip(sim.groups, pools, strict=True)
    )
    world = World(
        sim,
        device=device,
        host=tuple(2 * least for least in pools) if draw.random() < 0.5 else 0,
        page=page,
        max_running=draw.choice((2, 5, 16)),
        lag=draw.randrange(sim.depth),
        reserve=draw.choice((0.0, 0.4)),
    )
    stems = [bytes(draw.choices(b"abc", k=draw.choice((5, 24, 33, 60)))) for _ in range(3)]
    work = []
    for number in range(draw.randrange(3, 12)):
        stem = draw.choice(stems).decode()
        prompt = stem[: draw.randrange(1, len(stem) + 1)] + "".join(draw.choices("xyz", k=draw.randrange(8)))
        new = draw.randrange(1, longest - len(prompt) + 1)
        work.append((draw.randrange(20), world.request(prompt, f"r{number}", max_tokens=new)))
    return world, work


def play(world, work, limit=4000):
    """To the end; after every turn what is published is computed, and every step does something."""
    todo = sorted(work, key=lambda entry: entry[0])
    while todo or not (world.brain.idle and not world.news and not world.steps):
        while todo and todo[0][0] <= world.turns:
            world.submit(todo.pop(0)[1])
        assert world.turns < limit, "no end in sight"
        world.turn()
        for seat in world.brain._batch.seats:
            assert seat.lease.published * world.page <= seat.done <= seat.planned
    for plan in world.plans:
        assert all(row.count for row in plan.rows)


@pytest.mark.parametrize("seed", range(40))
def test_everybody_gets_through_a_tiny_pool_of_windows(world, seed):
    w, work = scenario(world, seed)
    play(w, work)
    w.check()
    assert w.brain.stats()["retractions"] <= len(work) / 2
    w.clean()


def small(**more):
    return SimConfig(**{"token_bytes": 8, "eos_every": 0, "windows": (8,), "depth": 1, **more})


@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("window", [1, 8, 17])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("full", [True, False])
def test_alone_a_request_runs_in_a_window_and_a_page(world, page, window, depth, full):
    """The stated bound is a window, two pages and a chunk; chunks are cut, and a page above the window is enough."""
    sim = small(windows=(window,), depth=depth, chunk=64, full=full)
    least = group_of(sim.groups[-1], page).runs_in(10**6)
    w = world(sim, device=(200 // page + 1, least) if full else (least,), page=page, lag=depth - 1)
    for number, (prompt, new) in enumerate(((1, 40), (16, 33), (50, 2), (48, 20))):
        w.submit("s" * prompt, f"r{number}", max_tokens=new)
    play(w, [])
    w.check()
    assert w.brain.stats()["failed"] == w.brain.stats()["retractions"] == 0


def test_b026_a_short_window_pool_costs_no_full_attention(world):
    w = world(small(chunk=40, windows=(10,)), device=(400, 40), page=1)
    for branch in "abcd":
        w.submit("s" * 20 + branch * 16, max_tokens=1)
        play(w, [])
    before = w.cache.usage()[Tier.DEVICE]
    assert before[1].free < 20  # what is kept of the four
    w.submit("t" * 20, "late", max_tokens=2)
    play(w, [])
    w.check()
    after = w.cache.usage()[Tier.DEVICE]
    assert after[0].tree_only == before[0].tree_only + 21
    assert w.brain.stats()["retractions"] == w.brain.stats()["stalls"] == 0


def test_b029_a_refused_chunk_leaves_the_request_at_what_is_computed(world):
    w = world(small(chunk=16), device=(240, 24), page=1)
    w.submit("c" * 4, "third", max_tokens=60)
    w.turn(3)
    w.submit("a" * 60, "first", max_tokens=2)
    w.submit("b" * 60, "second", max_tokens=2)
    play(w, [])
    w.check()
    assert w.brain.stats()["computed_tokens"] == 4 + 59 + 2 * (60 + 1)
    assert w.brain.stats()["retractions"] == 0


def test_b032_pages_to_load_are_counted_before_a_request_is_let_in(world):
    w = world(small(chunk=40), device=(200, 20), host=(200, 40), page=1)
    w.submit("h" * 13, max_tokens=1)
    play(w, [])
    w.cache._evictor.evict(0, 0, 200), w.cache._evictor.evict(0, 1, 20)
    w.submit("x" * 6, "other", max_tokens=40)
    w.turn(2)
    held = w.cache.usage()[Tier.DEVICE][1].held
    w.submit("h" * 12 + "n" * 10, "loads", max_tokens=2)
    w.turn()
    # 8 pages to load and 10 to compute do not fit beside what the other holds: a shorter chunk does.
    assert held + 18 > 20
    play(w, [])
    w.check()
    assert w.last("loads").cached.host == 12
    assert w.brain.stats()["failed"] == w.brain.stats()["retractions"] == 0


def test_a_cached_window_is_not_charged_twice(world):
    """Two windows and little more: who finds his window in the cache runs beside another, at once."""
    w = world(small(chunk=16), device=(400, 2 * 10 + 1), page=1)
    w.submit("p" * 40, "first", max_tokens=1)
    play(w, [])
    w.submit("q" * 9, "long", max_tokens=60)
    w.turn(12)
    w.submit("p" * 40 + "r", "again", max_tokens=5)
    play(w, [])
    w.check()
    assert w.last("again").cached.device == 40
    assert w.finished_at["again"] < w.finished_at["long"]
    assert w.brain.stats()["retractions"] == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_long_prompts_share_a_small_pool_without_retraction(world, depth):
    """Chunks in flight of several prompts pin the pool only until they have completed; then windows move on."""
    w = world(small(chunk=12, depth=depth), device=(900, 34), page=1, lag=depth - 1, max_running=3)
    for name in "abc":
        w.submit(name * 200, name, max_tokens=20)
    play(w, [])
    w.check()
    assert w.brain.stats()["computed_tokens"] == 3 * (200 + 19)
    assert w.brain.stats()["retractions"] == 0


def test_a_window_moves_on_before_anybody_is_retracted(world):
    """Pages that have left windows are let go of when pages run out, not only once in a while."""
    w = world(small(chunk=64), device=(400, 2 * 3 + 1), page=4)
    for name in "ab":
        w.submit(name * 6, name, max_tokens=80)
    play(w, [])
    w.check()
    assert w.brain.stats()["retractions"] == 0


def test_many_steps_ahead_leave_windows_to_others(world):
    w = world(small(max_steps=512, chunk=64), device=(4000, 60), page=1, max_running=3)
    for name in "abc":
        w.submit(name * 20, name, max_tokens=300)
    peak = 0
    while not w.brain.idle or w.news or w.steps:
        w.turn()
        peak = max([peak, *(int((seat.lease.tables[1] >= 0).sum()) for seat in w.brain._batch.seats)])
    w.check()
    assert peak <= 20 + 4 and w.brain.stats()["retractions"] == 0
    assert w.brain.stats()["steps"] < 3 * 300 / 2, "it still looks ahead"
