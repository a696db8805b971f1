"""The sim runner and its tokenizer, without a brain."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stepwell.abc.runner import PageCopy, Row, SlotOpen, StepPlan, TableEdit
from stepwell.builtin.sim import EOS, SimConfig, SimRunner, answer
from stepwell.builtin.sim_codec import SimCodec
from stepwell.cache.arena import Arena
from stepwell.types import Sampling


def ids(*pages):
    return np.array(pages, np.int32)


def prompt(text):
    return SimCodec(SimConfig()).encode(text)


def opened(config, pages=8, page=4):
    runner = SimRunner(config)
    runner.open(page, {group.name: pages for group in runner.groups}, 4, lambda: None)
    return runner


def first_step(slot=0, text="abcdef", pages=(3, 1), number=1):
    body = prompt(text)
    return StepPlan(
        number,
        rows=(Row(slot, 0, len(text), body, True),),
        opens=(SlotOpen(slot, Sampling(), body, 0),),
        tables=(TableEdit(slot, 0, 0, ids(*pages)),),
    )


def decode(number, slot, start, *, horizon=1, **options):
    return StepPlan(number, rows=(Row(slot, start, 1, None, True),), horizon=horizon, **options)


CONFIG = SimConfig(token_bytes=8, eos_every=0, max_steps=8)


def test_it_answers_what_the_pages_say():
    runner = opened(CONFIG)
    first = runner.launch(first_step()).poll()
    more = runner.launch(decode(2, 0, 6, horizon=2)).poll()
    assert first.tokens[0] + more.tokens[0] == answer(CONFIG, prompt("abcdef"), Sampling(max_tokens=3))
    assert more.steps == 2


def test_a_wrong_page_gives_a_wrong_answer():
    runner = opened(CONFIG)
    first = runner.launch(first_step()).poll()
    other = first_step(1, "zzzzzzzz", (3, 5), 2)  # overwrites a page that slot 0 reads
    runner.launch(other).poll()
    more = runner.launch(decode(3, 0, 6)).poll()
    assert first.tokens[0] + more.tokens[0] != answer(CONFIG, prompt("abcdef"), Sampling(max_tokens=2))


def test_pages_go_to_the_arena_and_back():
    runner = opened(CONFIG)
    arena = Arena.create(CONFIG.groups, 4, (4,))
    runner.pin(arena)
    first = runner.launch(first_step()).poll()
    saved = runner.launch(StepPlan(2, saves=(PageCopy(7, 0, ids(3, 1), ids(2, 0)),))).poll()
    assert saved.copies == {7: (True, True)}
    runner.launch(first_step(1, "zzzzzzzz", (3, 1), 3)).poll()
    back = decode(4, 0, 6, loads=(PageCopy(8, 0, ids(6, 7), ids(2, 0)),), tables=(TableEdit(0, 0, 0, ids(6, 7)),))
    more = runner.launch(back).poll()
    assert more.copies == {8: (True, True)}
    assert first.tokens[0] + more.tokens[0] == answer(CONFIG, prompt("abcdef"), Sampling(max_tokens=2))


def test_steps_and_copies_fail_when_told_to():
    runner = opened(SimConfig(token_bytes=8, fail_steps=(2,), fail_saves=(1,)))
    runner.pin(Arena.create(CONFIG.groups, 4, (4,)))
    assert runner.launch(first_step()).poll().error is None
    assert runner.launch(decode(2, 0, 6)).poll().error
    saved = runner.launch(StepPlan(3, saves=(PageCopy(1, 0, ids(3, 1), ids(0, 1)),))).poll()
    assert saved.copies == {1: (True, False)}


def test_a_window_reads_no_more_than_it_needs():
    config = SimConfig(token_bytes=8, eos_every=0, full=False, windows=(3,))
    runner = opened(config)
    body = prompt("abcdefghijkl")
    runner.launch(first_step(0, "abcdefghijkl", (0, 1, 2))).poll()
    gone = TableEdit(0, 0, 0, ids(-1, -1))
    more = runner.launch(decode(2, 0, 12, tables=(gone, TableEdit(0, 0, 3, ids(4))))).poll()
    assert more.tokens[0] == answer(config, body, Sampling(max_tokens=2))[1:]


def test_a_pace_makes_steps_take_time():
    woken = []
    runner = SimRunner(SimConfig(pace=0.05))
    runner.open(4, {"full": 8}, 4, lambda: woken.append(1))
    step = runner.launch(first_step())
    assert step.poll() is None
    until = time.monotonic() + 5
    while not woken and time.monotonic() < until:
        time.sleep(0.01)
    assert step.poll() is not None


def test_a_limit_ends_a_horizon_early_on_the_virtual_clock():
    config = SimConfig(verify=False, max_steps=100)
    runner = opened(config)
    whole = runner.launch(decode(1, 0, 10, horizon=100))
    runner.limit = lambda: whole.duration / 4
    cut = runner.launch(decode(2, 0, 110, horizon=100))
    assert whole.steps == 100
    assert 20 <= cut.steps <= 27
    assert cut.duration >= whole.duration / 4
    assert len(cut.poll().tokens[0]) == cut.steps


@pytest.mark.parametrize("options", [{"token_bytes": 12}, {"full": False}, {"vocab": 100}, {"preset": "abacus"}])
def test_settings_that_make_no_model_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "full" not in options else "windows"):
        SimConfig(**options)


def test_the_codec_is_bytes():
    codec = SimCodec(SimConfig())
    text = "naïve, 東京"
    raw = np.frombuffer(codec.encode(text), np.int32)
    stream = codec.stream()
    assert "".join(stream.add([int(token)]) for token in raw) + stream.end() == text
    assert codec.stream().add([EOS]) == ""
    half = codec.stream()
    assert half.add([0xE6, 0x9D]) == ""
    assert half.end() == "\ufffd"
    assert codec.piece(65) == b"A"
    assert codec.piece(EOS) == b""


def test_a_chat_is_a_prefix_of_its_continuation():
    codec = SimCodec(SimConfig())
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    more = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}]
    assert codec.chat(more).startswith(codec.chat(first))
    with pytest.raises(ValueError, match="wizard"):
        codec.chat([{"role": "wizard", "content": "x"}])
    with pytest.raises(ValueError, match="at least one"):
        codec.chat([])
