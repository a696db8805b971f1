"""Sums and concatenations over ranks: threads of one process, and processes over gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stepwell_kernels.collective import Group, Solo, TorchGroup, join, thread_groups

RANKS = 2


def said_by(group: Group) -> dict[str, object]:
    """What a rank has after one of each collective."""
    x = torch.arange(6.0).reshape(2, 3) + 10 * group.rank
    half = (torch.ones(3) / 3 * (group.rank + 1)).bfloat16()
    return {
        "sum": group.all_reduce(x.clone()).tolist(),
        "half": group.all_reduce(half).tolist(),
        "row": group.all_gather(x).tolist(),
        "deep": list(group.all_gather(x.reshape(1, 2, 3)).shape),
        "least": list(group.least(5 + group.rank, 7 - group.rank)),
        **moved_by(group),
    }


def moved_by(group: Group) -> dict[str, object]:
    """What came from whom: two exchanges under way at once, an empty one, and everybody's rows."""
    mine = torch.arange(3 * RANKS).view(-1, 1) + 100 * (group.rank + 1)
    even, uneven = torch.empty_like(mine), torch.empty(RANKS * (group.rank + 1), 1, dtype=torch.int64)
    everybody, none = torch.empty(RANKS, 2, dtype=torch.int64), torch.empty(0, 4)
    moving = [
        group.all_to_all(even, mine),
        group.all_to_all(uneven, mine[: sum(range(1, RANKS + 1))], [group.rank + 1] * RANKS, range(1, RANKS + 1)),
        group.all_to_all(none, none, [0] * RANKS, [0] * RANKS),
        group.gather(everybody, mine[:2, 0].contiguous()),
    ]
    for one in reversed(moving):
        one.wait()
    return {"even": even.flatten().tolist(), "uneven": uneven.flatten().tolist(), "everybody": everybody.tolist()}


def in_threads() -> list[dict[str, object]]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(said_by, thread_groups(RANKS)))


def in_processes(folder: Path) -> list[dict[str, object]]:
    meet = (folder / "meet").as_uri()
    ranks = [
        subprocess.Popen([sys.executable, __file__, meet, str(rank)], stdout=subprocess.PIPE) for rank in range(RANKS)
    ]
    return [json.loads(process.communicate(timeout=60)[0]) for process in ranks]


def main(meet: str, rank: int) -> None:
    group = TorchGroup.join(meet, rank, RANKS, "cpu", timeout_s=20)
    print(json.dumps(said_by(group)))
    group.close()
    group.close()
    with pytest.raises(RuntimeError, match="this rank has left its group"):
        group.all_reduce(torch.zeros(1))


@pytest.fixture(scope="module", params=["threads", "gloo"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    make: dict[str, Callable[[], list[dict[str, object]]]] = {
        "threads": in_threads,
        "gloo": lambda: in_processes(tmp_path_factory.mktemp("meet")),
    }
    return make[request.param]()


def test_all_ranks_have_the_same_bits(said: list[dict[str, object]]) -> None:
    own = {"even", "uneven"}
    assert [said[0][name] for name in said[0] if name not in own] == [
        said[1][name] for name in said[1] if name not in own
    ]


def test_sums_and_rows_are_of_all_ranks_in_order(said: list[dict[str, object]]) -> None:
    assert said[0]["sum"] == [[10, 12, 14], [16, 18, 20]]
    assert said[0]["row"] == [[0, 1, 2, 10, 11, 12], [3, 4, 5, 13, 14, 15]]
    assert said[0]["deep"] == [1, 2, 6]
    assert said[0]["half"] == pytest.approx([1.0] * 3, abs=0.01)


def test_rows_go_to_the_rank_that_they_are_for(said: list[dict[str, object]]) -> None:
    assert said[0]["even"] == [100, 101, 102, 200, 201, 202]
    assert said[1]["even"] == [103, 104, 105, 203, 204, 205]
    assert said[0]["uneven"] == [100, 200]
    assert said[1]["uneven"] == [101, 102, 201, 202]
    assert said[0]["everybody"] == [[100, 101], [200, 201]]


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_groups_of_the_same_ranks_meet_at_one_place_by_name(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meet = (tmp_path / "meet").as_uri() if kind == "file" else f"tcp://127.0.0.1:{port}"

    def rank(number: int) -> list[int]:
        groups = [TorchGroup.join(meet, number, RANKS, "cpu", 20, name) for name in ("", "one", "other")]
        least = [group.least(at + 10 * number)[0] for at, group in enumerate(groups)]
        for group in groups:
            group.close()
        return least

    with ThreadPoolExecutor(RANKS) as pool:
        assert list(pool.map(rank, range(RANKS))) == [[0, 1, 2]] * RANKS


def test_a_thread_that_left_is_missed_at_once() -> None:
    first, second = thread_groups(2)
    out = torch.empty(2)
    second.all_to_all(torch.empty(2), torch.ones(2))
    second.close()
    first.all_to_all(out, torch.zeros(2)).wait()
    assert out.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="rank 1 has left"):
        first.all_to_all(out, torch.zeros(2)).wait()


def test_all_keep_to_the_least(said: list[dict[str, object]]) -> None:
    assert said[0]["least"] == [5, 6]


def test_one_rank_is_alone(tmp_path: Path) -> None:
    group = join("", 0, 1, "cpu", 1.0)
    assert isinstance(group, Solo)
    x = torch.ones(2, 3)
    out = torch.empty(1, 2, 3)
    group.gather(out, x).wait()
    group.all_to_all(x, 2 * out[0]).wait()
    assert out.sum() == 6 and x.sum() == 12
    assert group.all_reduce(x) is x and group.all_gather(x) is x and group.least(3, 4) == (3, 4)


def test_a_rank_that_nobody_joins_gives_up_in_time(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)time"):
        TorchGroup.join((tmp_path / "meet").as_uri(), 0, RANKS, "cpu", timeout_s=0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
