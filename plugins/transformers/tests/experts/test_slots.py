"""Which slot a token of an expert goes to, where the expert has several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepwell_kernels.collective import thread_groups
from stepwell_transformers.experts.map import SlotMap
from stepwell_transformers.experts.share import Share
from stepwell_transformers.experts.slots import first_row


def test_b098_the_replicas_of_a_hot_expert_share_its_tokens() -> None:
    """200 tokens for expert 0 of 8 on 4 ranks with 12 slots: at first one more slot has some, then all that it got."""
    row = first_row(8, 4)
    map = SlotMap(row, 8, torch.device("cpu"))
    hot = torch.zeros((200, 1), dtype=torch.int64)
    before = torch.bincount(map.slots(hot, 0).flatten(), minlength=12)
    assert before.nonzero().flatten().tolist() == [0, 8]
    kept = map._slots, map._copies
    row = np.array([0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 0], np.int32)
    map.write(row)
    after = torch.bincount(map.slots(hot, 0).flatten(), minlength=12)
    assert after[row == 0].tolist() == [40] * 5
    assert (map._slots is kept[0]) and (map._copies is kept[1]), "graphs see what was written"
    shares = [Share(group).span(201) for group in thread_groups(4)]
    parts = [map.slots(torch.zeros((stop - start, 1), dtype=torch.int64), start) for start, stop in shares]
    spread = torch.bincount(torch.cat(parts).flatten(), minlength=12)[row == 0]
    assert spread.max() - spread.min() <= 1, "over all ranks together"


def test_b103_padding_and_ranks_do_not_skew_which_replica_is_taken() -> None:
    """Two groups of four ranks, an expert with two copies, 32 real tokens each and 8 of padding."""
    map = SlotMap(first_row(2, 1), 2, torch.device("cpu"))
    loads = torch.zeros(3)
    for _ in range(2):
        for rank, group in enumerate(thread_groups(4)):
            start, stop = Share(group).span(40)
            real = torch.arange(start, stop) < 32
            assert int(real.sum()) == (2 if rank == 3 else 10)
            slots = map.slots(torch.zeros((stop - start, 1), dtype=torch.int64), start)[real]
            loads += torch.bincount(slots.flatten(), minlength=3)
    assert loads.tolist() == [32, 0, 32]


@pytest.mark.parametrize("row", [[0, 1, 2, 3, 0], [0, 1, 2, 2, 0, 0], [0, 1, 2, 3, 4, 0]])
def test_a_map_that_leaves_an_expert_out_is_refused(row: list[int]) -> None:
    map = SlotMap(first_row(4, 2), 4, torch.device("cpu"))
    with pytest.raises(ValueError, match="each of which stands in one at least"):
        map.write(np.array(row, np.int32))
