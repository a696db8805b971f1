"""Whatever happens to requests with shared prefixes in small pools, each says what it says alone without a cache."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stepwell.builtin.sim import SimConfig
from stepwell.cache.keys import page_digests


def scenario(World, seed, **fixed):
    """A world and requests with shared prefixes, drawn from a seed; answers a list of (turn, request)."""
    draw = random.Random(seed)
    page = fixed.pop("page", draw.choice((1, 4, 16)))
    windows = fixed.pop("windows", draw.choice(((), (), (6,), (20, 5))))
    full = fixed.pop("full", draw.random() < 0.85 or not windows)
    tiers = draw.random() < 0.6
    longest = 60
    sim = SimConfig(
        token_bytes=8,
        windows=windows,
        full=full,
        eos_every=draw.choice((0, 0, 13)),
        chunk=draw.choice((page, 16, 40, 1000)),
        depth=draw.choice((1, 2, 3)),
        max_steps=draw.choice((1, 1, 8)),
        fail_steps=tuple(draw.sample(range(1, 40), draw.choice((0, 0, 2)))),
        fail_loads=tuple(draw.sample(range(1, 6), draw.choice((0, 0, 2)))),
        fail_saves=tuple(draw.sample(range(1, 6), draw.choice((0, 0, 2)))),
    )
    sim = replace(sim, **fixed.pop("sim", {}))
    device = -(-longest * draw.choice((100, 100, 130, 200, 400)) // 100 // page) + 2 * len(windows) + 1
    options = {
        "device": device,
        "host": device * draw.choice((1, 3)) if tiers else 0,
        "storage": {} if tiers and draw.random() < 0.6 else None,
        "page": page,
        "max_running": draw.choice((2, 5, 16)),
        "lag": draw.randrange(sim.depth),
        "step_retries": 9,
        "reserve": draw.choice((0.0, 0.4)),
    }
    world = World(sim, **{**options, **fixed})
    stems = [bytes(draw.choices(b"abc", k=draw.choice((5, 16, 24, 33)))) for _ in range(3)]
    grows = draw.random() < 0.5  # short prompts and long answers: pages run out while requests run
    work = []
    for number in range(draw.randrange(3, 12)):
        stem = draw.choice(stems).decode()
        cut = draw.randrange(1, 6 if grows else len(stem) + 1)
        prompt = stem[:cut] + "".join(draw.choices("xyz", k=draw.randrange(8)))
        request = world.request(
            prompt,
            f"r{number}",
            max_tokens=draw.randrange(1, longest - len(prompt)) if grows or draw.random() < 0.3 else 1 + number,
            temperature=draw.choice((0.0, 0.0, 1.0)),
            seed=number,
            logprobs=draw.choice((None, None, 1)),
            stop_ids=draw.choice(((), (), (101, 32))),
            priority=draw.choice((0, 0, 1)),
            store=draw.random() < 0.85,
            ttl=draw.choice((None, None, 5.0)),
        )
        if draw.random() < 0.5:
            digests = page_digests(request.namespace, request.tokens, page)
            request = msgspec.structs.replace(request, digests=digests)
        work.append((draw.randrange(4 if grows else 30), request))
    return world, work


def play(world, work, aborts=()):
    """Submit and abort at the turns given, and run to the end."""
    todo = sorted(work, key=lambda entry: entry[0])
    cuts = sorted(aborts)
    while todo or cuts:
        while todo and todo[0][0] <= world.turns:
            world.submit(todo.pop(0)[1])
        while cuts and cuts[0][0] <= world.turns:
            world.abort(cuts.pop(0)[1])
        world.turn()
    world.run()


def verify(world, aborted=()):
    for rid, request in world.requests.items():
        last = world.last(rid)
        said, truth = world.said(rid), world.truth(rid)
        assert last.completion_tokens == len(said)
        assert last.cached.total < max(1, last.prompt_tokens)
        if rid in aborted:
            assert said == truth[: len(said)], rid
        else:
            assert last.finish in ("stop", "length"), last
            assert said == truth, rid
        if request.sampling.logprobs is not None:
            assert sum(len(output.logprobs or ()) for output in world.outputs[rid]) == len(said)
    world.clean()


@given(st.integers(0, 10**9))
@example(554)  # a path that expired and was fetched again while its request went on
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_the_same_as_alone(world, seed):
    w, work = scenario(world, seed)
    play(w, work)
    verify(w)


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_aborts_at_random_turns(world, seed, data):
    w, work = scenario(world, seed)
    rids = [request.rid for _, request in work]
    aborts = data.draw(st.lists(st.tuples(st.integers(0, 80), st.sampled_from([*rids, "nobody"])), max_size=6))
    play(w, work, aborts)
    verify(w, {rid for _, rid in aborts})


@given(st.integers(0, 10**9), st.sampled_from((0.0, 0.0, 0.3)), st.sampled_from((0.0, 3.0, 1e9)), st.integers(0, 9))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_a_restart_pages_come_from_storage(world, patient, seed, flaky, patience, fetch_turns):
    w, work = scenario(world, seed, host=400, storage={})
    play(w, work)
    verify(w)
    policy = patient(patience=patience, max_pages=20)
    again, work = scenario(
        world, seed, host=400, storage=w.store, prefetch=policy, flaky=flaky, fetch_turns=fetch_turns
    )
    rids = [request.rid for _, request in work]
    aborts = [(seed % 23, rids[seed % len(rids)])] if flaky else []
    play(again, work, aborts)
    verify(again, {rid for _, rid in aborts})
    assert again.brain.stats()["fetch_pages_in_flight"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_an_abort_at_every_turn(world, seed):
    w, work = scenario(world, seed, page=4)
    play(w, work)
    verify(w)
    for turn in range(0, w.turns + 1, 1 + w.turns // 40):
        again, work = scenario(world, seed, page=4)
        victim = work[turn % len(work)][1].rid
        play(again, work, [(turn, victim), (turn, victim)])
        verify(again, {victim})
