"""Two CUDA devices, a process a rank; without two, nothing of this runs. Figures go to standard output (`-s`)."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from stepwell import ConfigError, Format, PeerLost, Traffic
from stepwell_symm import SymmConfig, SymmLowConfig, make, make_low
from stepwell_testkit import KitContext

RANKS = 2
LIMIT_S = 2.0


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two CUDA devices")
@pytest.mark.parametrize("what", ["sums", "graph", "lost", "figures"])
def test_between_two_devices(tmp_path: Path, what: str) -> None:
    meet = (tmp_path / "meet").as_uri()
    ranks = [subprocess.Popen([sys.executable, __file__, what, meet, str(rank)]) for rank in range(RANKS)]
    try:
        assert [process.wait(200) for process in ranks] == [0] * RANKS
    finally:
        for process in ranks:
            process.kill()


@dataclass(frozen=True)
class Rank:
    """One process's part."""

    rank: int
    meet: str
    device: torch.device

    def opened(self, kind, config, traffic):
        folder = Path(self.meet.removeprefix("file://")).parent
        where = f"{self.meet}-{kind.__name__}-{config.dtype}-{traffic.max_tokens}"
        dispatcher = kind(config, KitContext(folder, self.rank, RANKS, where, str(self.device)))
        dispatcher.open(traffic)
        return dispatcher

    def brought(self, traffic, count, seed):
        dice = torch.Generator().manual_seed(1000 * seed + self.rank)
        tokens = torch.randn(count, traffic.hidden, generator=dice).bfloat16()
        chosen = torch.rand(count, traffic.experts, generator=dice).topk(traffic.top_k).indices
        chosen[::3, 0] = -1
        given = tokens, chosen, torch.rand(count, traffic.top_k, generator=dice)
        return tuple(tensor.to(self.device) for tensor in given)

    def answered(self, dispatcher, got, traffic):
        """Expert e multiplies by (e + 1) / experts."""
        own = traffic.experts // RANKS
        factors = ((torch.arange(own, device=self.device) + 1 + self.rank * own) / traffic.experts).float()
        tokens = got.tokens.float()
        if got.scales is not None:
            tokens = (tokens.unflatten(-1, (-1, 128)) * got.scales[..., None]).flatten(-2)
        if dispatcher.format is Format.MASKED:
            return (tokens * factors[:, None, None]).bfloat16()
        share = torch.where(got.experts >= 0, factors[got.experts] * got.weights, 0)
        return (tokens * share.sum(1, keepdim=True)).bfloat16()

    def through(self, dispatcher, traffic, given):
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*given))
        return dispatcher.combine_finish(dispatcher.combine_start(self.answered(dispatcher, got, traffic), got))


def checked(sums, given, traffic, error):
    tokens, chosen, weights = given
    share = torch.where(chosen >= 0, weights * (chosen + 1) / traffic.experts, 0).sum(1, keepdim=True)
    right = tokens.float() * share
    off = (sums.float() - right).abs().max() / right.abs().max() if len(right) else torch.zeros(())
    assert off < error, float(off)


MODES = ((make, SymmConfig, 600), (make_low, SymmLowConfig, 128))


def sums(rank: Rank) -> None:
    """Random batches of all sizes, ranks out of step, two batches in flight."""
    for kind, config, most in MODES:
        for dtype, error in (("same", 0.02), ("fp8", 0.08)):
            traffic = Traffic(64, 8, 1024, "bfloat16", most)
            dispatcher = rank.opened(kind, config(dtype), traffic)
            for seed, count in enumerate((0, 1, 7, 128, most, 3) * 8):
                given = rank.brought(traffic, (count + 5 * rank.rank) % (most + 1), seed)
                if seed % 5 == rank.rank:
                    torch.cuda._sleep(3_000_000)
                checked(rank.through(dispatcher, traffic, given), given, traffic, error)
            pair = [rank.brought(traffic, 100, seed) for seed in (91, 92)]
            handles = [dispatcher.dispatch_start(*given) for given in pair]
            got = [dispatcher.dispatch_finish(handle) for handle in handles[::-1]][::-1]
            back = [dispatcher.combine_start(rank.answered(dispatcher, each, traffic), each) for each in got]
            for handle, given in zip(back, pair, strict=True):
                checked(dispatcher.combine_finish(handle), given, traffic, error)
            torch.cuda.synchronize()
            dispatcher.close()


def graph(rank: Rank) -> None:
    """Replays of small batches, ranks out of step."""
    traffic = Traffic(64, 8, 1024, "bfloat16", 128)
    dispatcher = rank.opened(make_low, SymmLowConfig(), traffic)
    given = rank.brought(traffic, 64, 0)
    rank.through(dispatcher, traffic, given)
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
        out = rank.through(dispatcher, traffic, given)
        again = rank.through(dispatcher, traffic, given)
    for seed in range(100):
        for held, fresh in zip(given, rank.brought(traffic, 64, seed), strict=True):
            held.copy_(fresh)
        if seed % 20 == 7 * rank.rank:
            torch.cuda._sleep(30_000_000)
        captured.replay()
        checked(out, given, traffic, 0.02)
        assert torch.equal(out, again)
    dispatcher.close()


def lost(rank: Rank) -> None:
    """The other rank is gone after one exchange."""
    for kind, config, _ in MODES:
        traffic = Traffic(64, 8, 1024, "bfloat16", 32)
        dispatcher = rank.opened(kind, config(timeout_s=LIMIT_S), traffic)
        given = rank.brought(traffic, 32, 0)
        checked(rank.through(dispatcher, traffic, given), given, traffic, 0.02)
        torch.cuda.synchronize()
        if rank.rank == 0:
            start = time.monotonic()
            with pytest.raises(PeerLost):
                out = rank.through(dispatcher, traffic, given)
                assert out.isnan().any()  # waits for the stream
                dispatcher.dispatch_start(*given)
            assert time.monotonic() - start < 5 * LIMIT_S
        dispatcher.close()


def figures(rank: Rank) -> None:
    """Milliseconds of a dispatch and of a combine; of both in a graph for low latency."""
    traffic = Traffic(256, 8, 7168, "bfloat16", 4096)
    dispatcher = rank.opened(make, SymmConfig(), traffic)
    given = rank.brought(traffic, 4096, 0)
    parts = [[], []]
    for _ in range(30):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*given))
        marks[1].record()
        dispatcher.combine_finish(dispatcher.combine_start(got.tokens, got))
        marks[2].record()
        torch.cuda.synchronize()
        for part, begin, end in zip(parts, marks, marks[1:], strict=True):
            part.append(begin.elapsed_time(end))
    dispatch, combine = (sorted(part)[len(part) // 2] for part in parts)
    print(f"rank {rank.rank}: symm, 4096 tokens: dispatch {dispatch:.3f} ms, combine {combine:.3f} ms", flush=True)
    dispatcher.close()
    traffic = Traffic(288, 8, 7168, "bfloat16", 128)
    low = rank.opened(make_low, SymmLowConfig(in_flight=2), traffic)
    given = rank.brought(traffic, 128, 0)

    def turn():
        got = low.dispatch_finish(low.dispatch_start(*given))
        low.combine_finish(low.combine_start(got.tokens, got))

    turn()
    turns, captured = 20, torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        for _ in range(turns):
            turn()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    captured.replay()
    begin.record()
    captured.replay()
    end.record()
    torch.cuda.synchronize()
    print(f"rank {rank.rank}: symm-low-latency, 128 tokens: {1e3 * begin.elapsed_time(end) / turns:.1f} us", flush=True)
    low.close()


if __name__ == "__main__":
    device = torch.device("cuda", int(sys.argv[3]))
    torch.cuda.set_device(device)
    try:
        globals()[sys.argv[1]](Rank(int(sys.argv[3]), sys.argv[2], device))
    except ConfigError as error:
        sys.exit(f"rank {sys.argv[3]}: {error}")
