"""The order in which two halves go through layers, whatever layers there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell_transformers.twobatch.turns import Turns

LAYERS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
"""Rounds of dispatches of each layer; none where it has no experts."""


class Exchange:
    """Two buffers, of which each use cleans the one that comes next: a third batch would lose what is under way."""

    def __init__(self):
        self.under_way, self.most = set(), 0

    def start(self, batch):
        assert len(self.under_way) < 2, "a third batch"
        self.under_way.add(batch)
        self.most = max(self.most, len(self.under_way))

    def finish(self, batch):
        self.under_way.remove(batch)


@given(LAYERS)
def test_b118_any_layers_keep_to_two_batches_and_the_first_half_is_ahead_in_each(layers):
    """Also with several rounds a layer and with none; the second half reads what the first has written there."""
    turns, exchange, log = Turns(), Exchange(), []

    def half(name):
        for layer, rounds in enumerate(layers):
            log.append((name, layer))
            for number in range(rounds):
                exchange.start((name, layer, number))
                turns.turn()  # between the start and the finish of a dispatch
                turns.turn()  # and of a combine
                exchange.finish((name, layer, number))

    turns.run(lambda: half("first"), lambda: half("second"))
    for layer in range(len(layers)):
        assert log.index(("first", layer)) < log.index(("second", layer))
    assert not exchange.under_way
    assert exchange.most == (2 if any(layers) else 0)
