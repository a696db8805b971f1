"""What the bench of two halves measures, at small sizes; and what halves are worth by a made-up clock."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from click.testing import CliRunner

from stepwell.cli import root
from stepwell_transformers.bench import twobatch, twobatch_rank
from stepwell_transformers.bench.twobatch import figures, share
from stepwell_transformers.bench.twobatch_rank import Timed
from stepwell_transformers.twobatch.turns import Turns


def test_the_hidden_share_is_of_the_shorter():
    assert share(100, 100, 120) == 0.8
    assert share(100, 50, 110) == 0.8
    assert share(50, 100, 110) == 0.8
    assert share(100, 0, 100) == 0
    row = figures(Timed("decode", 64, 1.0, 2.0, compute=0.1, halves=0.11, serial=0.2, overlap=0.12))
    assert (row["hidden"], row["times"], row["comm_ms"], row["own_hidden"]) == (0.8, 1.667, 100.0, 0.9)


def test_two_ranks(monkeypatch, experts_model):
    """Ranks as threads, which costs no imports."""

    def outputs(module, asked, folder):
        import msgspec

        with ThreadPoolExecutor(len(asked)) as pool:
            return [msgspec.json.encode(found) for found in pool.map(twobatch_rank.main, asked)]

    monkeypatch.setattr(twobatch, "outputs", outputs)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    args = ("--prefill", "24", "--decode", "4", "--ratio", "1", "--steps", "1", "--rounds", "1", "--device", "cpu")
    done = CliRunner().invoke(
        root, ["bench", "twobatch", *args, "--json", "--model", str(experts_model("qwen3-moe"))], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["what"] for row in rows] == ["prefill 24", "decode 4"]
    assert all(row["compute_ms"] > 0 and row["overlap_ms"] > 0 and row["gb_per_s"] > 0 for row in rows)


class Machine:
    """A clock that computing moves on, and one link, on which what set out first is through first."""

    def __init__(self, layers, before, after, link):
        self.layers, self.parts, self.link, self.clock, self.free = layers, (before, after), link, 0.0, 0.0

    def forward(self, share, turn):
        for _ in range(self.layers):
            for part in self.parts:
                self.clock += part * share
                self.free = max(self.clock, self.free) + self.link * share
                arrives = self.free
                turn()
                self.clock = max(self.clock, arrives)


@pytest.mark.parametrize(("before", "after", "least"), [(1.0, 1.0, 0.95), (0.8, 1.2, 0.8), (1.2, 0.8, 0.8)])
def test_at_equality_nearly_all_is_hidden_where_the_parts_of_a_layer_are_alike(before, after, least):
    """Attention before the dispatch, experts behind it; the rest is what a longer part leaves of a shorter one."""
    times = {}
    for name, link in (("compute", 0.0), ("serial", 1.0)):
        machine = Machine(48, before, after, link)
        machine.forward(1.0, lambda: None)
        times[name] = machine.clock
    machine, turns = Machine(48, before, after, 1.0), Turns()
    turns.run(lambda: machine.forward(0.5, turns.turn), lambda: machine.forward(0.5, turns.turn))
    assert times["serial"] == pytest.approx(2 * times["compute"])
    assert share(times["compute"], times["serial"] - times["compute"], machine.clock) >= least
    assert times["serial"] / machine.clock >= 1.6
