"""Sums over ranks in one kernel: what a rank writes to the others, and what it makes of what they wrote."""

from __future__ import annotations

import pytest
import torch

from stepwell_kernels.fused import Norm, joined
from stepwell_kernels.fused.reference import add_rms_norm

pytest.importorskip("triton")
from stepwell_kernels.collective.one_shot import one_shot

ROWS, WIDE = 3, 64


class Ranks:
    """The memory of some ranks in one place, each seen from one of them whose kernel runs here."""

    def __init__(self, world: int, rank: int) -> None:
        self.world, self.rank = world, rank
        self.words = [torch.zeros(2, world, ROWS, WIDE, dtype=torch.int64) for _ in range(world)]
        self.peers = torch.tensor([words.data_ptr() for words in self.words])
        self.counts = torch.zeros(ROWS, dtype=torch.int32)

    def came(self, rank: int, part: torch.Tensor) -> None:
        """What another rank has written here for the next sum; each row counts its own sums."""
        for row, numbers in enumerate(part):
            count = int(self.counts[row]) + 1
            self.words[self.rank][count & 1, rank, row, : len(numbers) // 2] = words(numbers, count)

    def sum(
        self, parts: list[torch.Tensor], residual: torch.Tensor | None = None, norm: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's answer to the next sum of all parts."""
        for rank, part in enumerate(parts):
            if rank != self.rank:
                self.came(rank, part)
        own = parts[self.rank].clone()
        return one_shot(own, self.peers, self.counts, self.rank, self.world, WIDE, residual, norm)


def words(part: torch.Tensor, count: int) -> torch.Tensor:
    """Pairs of numbers with their count above them."""
    return (part.view(torch.int32).long() & 0xFFFFFFFF) | count << 32


def noise(rows: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(("world", "rank"), [(2, 0), (2, 1), (4, 2)])
def test_the_sum_is_in_the_order_of_ranks_and_others_get_this_part(world: int, rank: int) -> None:
    ranks, dim = Ranks(world, rank), 40
    for turn, rows in enumerate((2, 3, 1), 1):  # a smaller sum after a larger one goes on counting its own rows
        parts = [noise(rows, dim, 10 * turn + other) for other in range(world)]
        got, _ = ranks.sum(parts)
        want = torch.zeros(rows, dim)
        for part in parts:
            want += part.float()
        assert torch.allclose(got.float(), want, rtol=2**-7)  # the interpreter cuts where a device rounds
        for other in set(range(world)) - {rank}:
            sent = ranks.words[other][turn & 1, rank, :1, : dim // 2]
            assert torch.equal(sent, words(parts[rank][:1], turn))


@pytest.mark.parametrize("norm", [Norm(None, 1e-5), Norm(noise(1, 36, 5)[0], 1e-6, 1.0, True)])
def test_the_sum_is_added_to_the_residual_and_normed(norm: Norm) -> None:
    ranks = Ranks(2, 1)
    parts, residual = [noise(2, 36, 1), noise(2, 36, 2)], noise(2, 36, 3)
    out, total = ranks.sum(parts, residual, norm)
    whole = (parts[0].float() + parts[1].float()).bfloat16()
    want, added = add_rms_norm(whole, residual, norm.weight, norm.eps, norm.offset, norm.late)
    assert torch.allclose(total.float(), added.float(), atol=0.04)  # ours rounds once less
    assert torch.allclose(out.float(), want.float(), atol=0.04)


def test_parts_of_a_product_are_joined_before_they_are_sent() -> None:
    ranks, generator = Ranks(2, 0), torch.Generator().manual_seed(4)
    parts, other, residual = torch.randn(3, 2, 36, generator=generator), noise(2, 36, 2), noise(2, 36, 3)
    ranks.came(1, other)
    out, total = one_shot(parts, ranks.peers, ranks.counts, 0, 2, WIDE, residual, Norm(None, 1e-5))
    own = joined(parts, torch.bfloat16)
    want, added = add_rms_norm((own.float() + other.float()).bfloat16(), residual, None, 1e-5)
    assert torch.allclose(total.float(), added.float(), atol=0.04)
    assert torch.allclose(out.float(), want.float(), atol=0.04)
    sent = ranks.words[1][1, 0, :2, :18].to(torch.int32).view(torch.bfloat16)
    assert torch.allclose(sent.float(), own.float(), rtol=2**-6)


def test_counts_of_rows_that_a_sum_lacks_stay() -> None:
    ranks = Ranks(2, 0)
    ranks.sum([noise(2, 8, 1), noise(2, 8, 2)])
    assert ranks.counts.tolist() == [1, 1, 0]
