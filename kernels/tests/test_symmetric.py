"""Sums in one kernel between two CUDA devices, ranks as processes; without two, nothing of this runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepwell_kernels.collective import Group, join
from stepwell_kernels.fused import Norm, add_rms_norm

RANKS, DIM, TURNS = 2, 4096, 200
ROWS = (1, 3, 64, 128, 300)


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two CUDA devices")
def test_ranks_have_the_same_bits_eagerly_and_in_graphs(tmp_path: Path) -> None:
    meet = (tmp_path / "meet").as_uri()
    ranks = [subprocess.Popen([sys.executable, __file__, meet, str(rank)]) for rank in range(RANKS)]
    try:
        assert [process.wait(120) for process in ranks] == [0] * RANKS
    finally:
        for process in ranks:
            process.kill()


def part_of(rank: int, rows: int, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * turn + 10 * rows + rank)
    return torch.randn(rows, DIM, generator=generator).bfloat16()


def wanted(rows: int, turn: int) -> torch.Tensor:
    """The sum in the order of ranks."""
    total = torch.zeros(rows, DIM)
    for rank in range(RANKS):
        total += part_of(rank, rows, turn).float()
    return total.bfloat16()


def main(meet: str, rank: int) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = join(meet, rank, RANKS, device, 60)
    print(f"rank {rank}: {type(group).__name__}", flush=True)
    assert group.least(3 + rank, 9 - rank) == (3, 8)
    whole = group.all_gather(part_of(rank, 4, 0).to(device))
    assert torch.equal(whole.cpu(), torch.cat([part_of(other, 4, 0) for other in range(RANKS)], -1))
    for turn, rows in enumerate(ROWS * 4):
        got = group.all_reduce(part_of(rank, rows, turn).to(device))
        assert torch.equal(got.cpu(), wanted(rows, turn)), (rows, turn)
    fused(group, rank, device)
    in_graphs(group, rank, device)
    torch.cuda.synchronize()
    group.least(0)
    group.close()


def fused(group: Group, rank: int, device: torch.device) -> None:
    weight = torch.rand(DIM, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    for norm in (Norm(weight, 1e-5), Norm(weight, 1e-6, 1.0, True), Norm(None, 1e-5)):
        for turn, rows in enumerate(ROWS):
            residual = part_of(7, rows, turn).to(device)
            out, total = group.all_reduce_add_norm(part_of(rank, rows, turn).to(device), residual, norm)
            same, sums = add_rms_norm(
                wanted(rows, turn).to(device), residual, norm.weight, norm.eps, norm.offset, norm.late
            )
            assert torch.allclose(total.float(), sums.float(), atol=0.04, rtol=0.02), (rows, norm)
            assert torch.allclose(out.float(), same.float(), atol=0.04, rtol=0.02), (rows, norm)


def in_graphs(group: Group, rank: int, device: torch.device) -> None:
    """Replays go on where eager sums left off, and ranks that are out of step wait for each other."""
    rows = 16
    x, residual = torch.zeros(rows, DIM, device=device).bfloat16(), part_of(9, rows, 0).to(device)
    norm = Norm(torch.ones(DIM, device=device).bfloat16(), 1e-5)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        group.all_reduce_add_norm(x.clone(), residual, norm)
        group.all_reduce(x.clone())
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            once = group.all_reduce(x.clone())
            _, twice = group.all_reduce_add_norm(once.clone(), residual, norm)
        for turn in range(TURNS):
            x.copy_(part_of(rank, rows, turn), non_blocking=False)
            graph.replay()
            if turn % 50 == rank * 7:
                torch.cuda._sleep(50_000_000)
            assert torch.equal(once.cpu(), wanted(rows, turn)), turn
            doubled = (wanted(rows, turn).to(device).float() * 2 + residual.float()).bfloat16()
            assert torch.equal(twice, doubled), turn


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
