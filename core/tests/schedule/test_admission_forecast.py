"""How long answers get, learned from those that finished, and what that lets in."""

from __future__ import annotations

import random
import statistics

import pytest

from stepwell.builtin.sim import SimConfig
from stepwell.schedule.forecast import BUCKETS, Forecast, bucket, lowest

SIM = SimConfig(token_bytes=8, eos_every=0, verify=False, context=8192, depth=1)


def test_buckets_are_in_a_row_and_an_eighth_wide():
    for at in range(16, BUCKETS):
        assert bucket(lowest(at)) == bucket(lowest(at + 1) - 1) == at
        assert lowest(at + 1) - lowest(at) <= lowest(at) / 8


def test_before_anything_finished_a_request_gets_as_long_as_it_may():
    forecast = Forecast(0.4)
    assert forecast.expected(0, 4096) == 4096
    assert forecast.expected(1000, 4096) == 3096
    assert forecast.expected(4096, 4096) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_what_is_left_is_learned_at_every_length(seed):
    draw = random.Random(seed)
    forecast = Forecast(0.4)
    lengths = [min(4000, int(draw.lognormvariate(5.5, 0.8)) + 1) for _ in range(1500)]
    for length in lengths:
        forecast.finished(length, 4096)
    recent = lengths[-500:]
    for generated in (0, 50, 150, 300):
        for max_new in (generated + 60, 1000, 4096):
            left = [min(length, max_new) - generated for length in recent if length > generated]
            assert forecast.expected(generated, max_new) == pytest.approx(statistics.mean(left), rel=0.35, abs=8)


def test_beyond_what_was_seen_the_limit_is_believed():
    forecast = Forecast(0.4)
    for _ in range(300):
        forecast.finished(100, 4096)
    assert forecast.expected(0, 4096) < 130
    assert forecast.expected(200, 4096) == 3896


def test_answers_that_were_cut_do_not_count_as_short():
    """All of them got what they may: nothing is known of what they would have got."""
    forecast = Forecast(0.4)
    for _ in range(300):
        forecast.finished(64, 64)
    assert forecast.expected(0, 64) == pytest.approx(64)
    assert forecast.expected(0, 4096) == pytest.approx(4096)
    for _ in range(300):
        forecast.finished(1000, 4096)
    assert forecast.expected(0, 4096) == pytest.approx(1000, rel=0.1)


def test_newer_answers_count_more():
    forecast = Forecast(0.4)
    for _ in range(1000):
        forecast.finished(100, 4096)
    for _ in range(600):
        forecast.finished(1000, 4096)
    assert forecast.expected(0, 4096) == pytest.approx(1000, rel=0.15)


def test_it_goes_on_for_ever():
    forecast = Forecast(0.4)
    for number in range(70_000):
        forecast.finished(90 + number % 20, 4096)
    assert 95 < forecast.expected(0, 4096) < 130
    assert 0.09 < forecast.margin < 0.11


class Traffic:
    """Requests with answers of such lengths, always so many in the system; clients leave when they have them."""

    def __init__(self, w, lengths, max_tokens, at_once=64):
        self.running = []
        self.retracted = []
        """Of all so far, when so many had finished."""
        ends = {}
        waiting = list(enumerate(lengths))[::-1]
        inside = set()
        while waiting or inside:
            while waiting and len(inside) < at_once:
                number, length = waiting.pop()
                rid = w.submit(f"{number:016}", max_tokens=max_tokens)
                ends[rid] = length
                inside.add(rid)
            w.turn()
            for rid in sorted(inside):
                got = w.last(rid).completion_tokens if rid in w.outputs else 0
                if got >= ends[rid] and rid not in w.finished_at:
                    w.abort(rid, "stop")
                if rid in w.finished_at:
                    inside.discard(rid)
                    self.retracted.append(w.brain.counters.retractions)
            self.running.append(w.brain.running)
        w.run(10**6)
        w.clean()
        assert w.brain.counters.failed == 0


@pytest.mark.parametrize("margin", [0.4, 1.0])
def test_clients_who_declare_much_and_use_little_fill_the_batch(world, margin):
    """4,000 declared, 100 used: the pool holds 40 such answers, or one of what is declared."""
    w = world(SIM, device=40 * 8, page=16, max_running=64, reserve=margin, audit=False)
    traffic = Traffic(w, [100] * 400, 4000)
    assert statistics.mean(traffic.running[:60]) <= 8
    assert statistics.mean(traffic.running[-400:-120]) >= 30
    assert traffic.retracted[-1] <= 40


def test_when_lengths_change_few_give_way(world):
    w = world(SIM, device=40 * 8, page=16, max_running=64, audit=False)
    traffic = Traffic(w, [100] * 250 + [600] * 60, 4000)
    before, after = traffic.retracted[190], traffic.retracted[-1] - traffic.retracted[190]
    assert before <= 30
    assert after <= 90
