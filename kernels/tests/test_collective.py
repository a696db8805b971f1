"""Sums and concatenations over ranks: threads of one process, and processes over gloo."""

from __future__ import annotations

import json
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
    }


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
    assert said[0] == said[1]


def test_sums_and_rows_are_of_all_ranks_in_order(said: list[dict[str, object]]) -> None:
    assert said[0]["sum"] == [[10, 12, 14], [16, 18, 20]]
    assert said[0]["row"] == [[0, 1, 2, 10, 11, 12], [3, 4, 5, 13, 14, 15]]
    assert said[0]["deep"] == [1, 2, 6]
    assert said[0]["half"] == pytest.approx([1.0] * 3, abs=0.01)


def test_all_keep_to_the_least(said: list[dict[str, object]]) -> None:
    assert said[0]["least"] == [5, 6]


def test_one_rank_is_alone(tmp_path: Path) -> None:
    group = join("", 0, 1, "cpu", 1.0)
    assert isinstance(group, Solo)
    x = torch.ones(2, 3)
    assert group.all_reduce(x) is x and group.all_gather(x) is x and group.least(3, 4) == (3, 4)


def test_a_rank_that_nobody_joins_gives_up_in_time(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)time"):
        TorchGroup.join((tmp_path / "meet").as_uri(), 0, RANKS, "cpu", timeout_s=0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
