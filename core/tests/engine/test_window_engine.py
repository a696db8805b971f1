"""Requests many windows long on models with windows: each says what it says alone, and holds no more than it must."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.builtin.sim import SimConfig
from stepwell.builtin.writers import SelectiveConfig, WriteBack, WriteBackConfig, WriteThrough, WriteThroughSelective
from stepwell.types import DIGEST_BYTES, Tier

WRITERS = {
    "write_through": WriteThrough,
    "write_through_selective": lambda: WriteThroughSelective(SelectiveConfig(2)),
    "write_back": lambda: WriteBack(WriteBackConfig(0.3)),
}


def sim(windows, **options):
    return SimConfig(**{"token_bytes": 8, "eos_every": 0, "windows": windows, "chunk": 32, **options})


def text(length, start="", seed=0):
    draw = random.Random(seed)
    return start + "".join(draw.choices("abcxyz", k=length - len(start)))


def groups(full, windows, big, small):
    """Pages of each group: so many for full attention, so many for each window."""
    return ((big,) if full else ()) + (small,) * len(windows)


def runs_in(window, page, length):
    """Pages that a window group needs to run a request alone."""
    return min(-(-length // page), -(-max(window, page) // page) + 1)


# region: the same answers


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize(
    ("full", "windows"),
    [(True, (15,)), (True, (1,)), (True, (40, 6)), (False, (15,)), (False, (16, 3)), (True, (500,))],
)
@pytest.mark.parametrize("chunk", [5, 16, 1000])
def test_prompts_of_many_windows_say_what_they_say_alone(world, page, full, windows, chunk):
    """Chunks end inside of windows, at their edges, and reach over several of them."""
    w = world(sim(windows, full=full, chunk=chunk), page=page, device=-(-700 // page), host=-(-700 // page))
    first = text(120, seed=1)
    w.submit(first, max_tokens=20)
    w.run()
    for number, cut in enumerate((120, 119, 64, 33, 7)):
        w.submit(text(130, first[:cut], seed=number), max_tokens=12)
    w.submit(first, max_tokens=20)
    w.run()
    w.check()
    assert w.last("r7").cached.total > 0, "the same prompt again is a hit"
    w.clean()


@given(st.data(), st.integers(0, 10**9))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_tiny_window_pools_serve_everybody(world, data, seed):
    """Property 18: whatever fits alone ends, however small the windows' pools and however many want them."""
    draw = random.Random(seed)
    page = draw.choice((1, 4, 16))
    windows = draw.choice(((6,), (17,), (33, 5)))
    full = draw.random() < 0.7
    longest = 100
    device = tuple(-(-longest // page) for _ in range(full)) + tuple(runs_in(each, page, longest) for each in windows)
    w = world(
        sim(windows, full=full, chunk=draw.choice((page, 16, 1000)), depth=draw.choice((1, 2, 3))),
        page=page,
        device=device,
        host=draw.choice((0, tuple(2 * pages for pages in device))),
        max_running=draw.choice((1, 3, 8)),
        lag=0,
    )
    stem = text(60, seed=seed)
    for number in range(draw.randrange(2, 6)):
        prompt = text(draw.randrange(61, 80), stem[: draw.randrange(60)], seed=number)
        w.submit(prompt, max_tokens=draw.randrange(1, longest - len(prompt)))
        w.turn(draw.randrange(8))
    w.run()
    w.check()
    w.clean()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("windows", [(12,), (30, 4)])
def test_write_policies_change_no_answer(world, write, windows):
    w = world(
        sim(windows, chunk=24),
        page=4,
        device=groups(True, windows, 70, 36),
        host=groups(True, windows, 120, 40),
        write=WRITERS[write](),
    )
    told = [text(60, seed=seed) for seed in range(3)]
    for turn in range(4):
        for number, prompt in enumerate(told):
            w.submit(prompt, f"{turn}-{number}", max_tokens=6)
        w.run()
        w.check()
        told = [
            prompt + bytes(w.said(f"{turn}-{number}")).decode("latin1") + text(9, seed=turn)
            for number, prompt in enumerate(told)
        ]
    assert sum(w.last(f"3-{number}").cached.total for number in range(3)) > 0
    w.clean()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("full", "windows"), [(True, (12,)), (True, (30, 4)), (False, (12, 5))])
def test_after_a_restart_windows_come_from_storage(world, write, full, windows):
    settings = {"page": 4, "device": 80, "host": 120, "storage": {}}
    w = world(sim(windows, full=full), **settings, write=WRITERS[write]())
    prompt = text(96, seed=3)
    for _ in range(3):
        w.submit(prompt, max_tokens=9)
        w.run()
    w.check()
    told = prompt + bytes(w.said("r3")).decode("latin1")
    held = sorted(Counter(key[DIGEST_BYTES:] for key in w.store).values())
    pages = sorted([-(-window // 4) + 1 for window in windows] + [26] * full)
    assert write != "write_through" or held == pages, "of every window what the ends need, and no more"
    again = world(sim(windows, full=full), **{**settings, "storage": w.store}, write=WRITERS[write]())
    again.submit(told + text(4, seed=1), max_tokens=9)
    again.submit(told[:104], max_tokens=9)
    again.run()
    again.check()
    if write == "write_through":
        assert [again.last(rid).cached.total for rid in ("r1", "r2")] == [104, 100]
        assert again.cache.stats.fetched > 0 and not again.cache.stats.fetch_failed
    again.clean()


@pytest.mark.parametrize(("full", "windows"), [(True, (13,)), (True, (24, 5)), (False, (9,))])
def test_an_abort_at_every_turn_of_a_hybrid(world, full, windows):
    def play(cut=None):
        w = world(
            sim(windows, full=full, chunk=16, depth=3),
            page=4,
            device=groups(full, windows, 40, 12),
            host=groups(full, windows, 60, 12),
            storage={},
            lag=2,
        )
        stem = text(40, seed=2)
        for number in range(3):
            w.submit(text(50, stem[: 20 + 7 * number], seed=number), f"r{number}", max_tokens=10)
        if cut is not None:
            w.turn(cut)
            w.abort(f"r{cut % 3}")
        w.run()
        for number in range(3):
            said, truth = w.said(f"r{number}"), w.truth(f"r{number}")
            whole = cut is None or number != cut % 3
            assert said == (truth if whole else truth[: len(said)])
        w.clean()
        return w.turns

    for cut in range(0, play() + 1, 3):
        play(cut)


def test_a_window_holds_the_very_token_that_is_sampled_late(world):
    """A stop found a step late drops a surplus token: its page is nobody's, and what follows is as if it never was."""
    w = world(sim((7,), depth=3, eos_every=9, chunk=16), page=1, device=200, host=100, lag=2)
    for seed in range(6):
        w.submit(text(40, seed=seed), max_tokens=40)
    w.run()
    for rid in list(w.requests):
        w.submit(w.requests[rid].tokens + b"".join(token.to_bytes(4, "little") for token in w.said(rid)), max_tokens=10)
    w.run()
    w.check()
    w.clean()


# endregion

# region: no more than it must


@pytest.mark.parametrize(("page", "window", "chunk"), [(1, 15, 8), (4, 15, 16), (4, 1, 16), (16, 60, 32), (8, 8, 24)])
@pytest.mark.parametrize("depth", [1, 3])
def test_window_pages_are_let_go_of_as_a_request_goes_on(world, page, window, chunk, depth):
    w = world(sim((window,), chunk=chunk, depth=depth), page=page, device=-(-400 // page), lag=depth - 1)
    w.submit(text(200, seed=4), max_tokens=120)
    most, most_decoding, full = 0, 0, 0
    while "r1" not in w.finished_at:
        w.turn()
        usage = w.cache.usage()[Tier.DEVICE]
        most = max(most, usage[1].held)
        full = max(full, usage[0].held)
        if len(w.said("r1")) > 2 * depth + 2:
            most_decoding = max(most_decoding, usage[1].held)
        assert w.turns < 2000
    w.check()
    width = -(-window // page) + 2
    in_flight = -(-depth * chunk // page) + depth
    assert most <= width + in_flight
    assert most_decoding <= width + 2 * depth
    assert full >= 310 // page, "full attention keeps everything meanwhile"
    w.clean()


def test_idle_windows_never_keep_a_request_from_running(world):
    """Pages that ended requests left in the window's pool go for the next, and no full page does."""
    w = world(sim((8,), chunk=16), page=4, device=(120, 8))
    for seed in range(10):
        w.submit(text(40, seed=seed), max_tokens=4)
        w.run()
    w.check()
    usage = w.cache.usage()[Tier.DEVICE]
    assert usage[0].tree_only == 10 * (43 // 4), "of full attention everything stayed"
    w.submit(text(40, seed=9), max_tokens=4)
    w.run()
    assert w.last("r11").cached.total >= 36
    w.clean()


# endregion
