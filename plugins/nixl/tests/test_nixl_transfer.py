"""How a batch is cut, and when memory may be used again."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from stepwell_nixl.client import Rows
from stepwell_nixl.transfer import JOINED, Mover, cut, joined, merged, rows


class Broken(Exception):
    """What the double raises."""


class Slow:
    """An agent whose transfers end, or fail, after some looks at them; it notes what was in flight."""

    def __init__(self, bad: set[int], looks: int = 4) -> None:
        self.name = "me"
        self.bad, self.looks = bad, looks
        self.flying: dict[int, tuple[int, list[int]]] = {}
        self.started: list[list[int]] = []
        self.most = 0
        self.early: list[int] = []

    def get_xfer_descs(self, descs: Rows, mem_type: str) -> Rows:
        return descs

    def initialize_xfer(self, operation: str, local: Rows, remote: Rows, peer: str) -> int:
        pages = [at // 10 for at, size, _ in remote.tolist() for at in range(at, at + size, 10)]
        self.started.append(pages)
        self.flying[len(self.started)] = (self.looks, pages)
        return len(self.started)

    def transfer(self, handle: int) -> str:
        self.most = max(self.most, len(self.flying))
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        looks, pages = self.flying[handle]
        self.flying[handle] = (looks - 1, pages)
        if looks > 1:
            return "PROC"
        if self.bad & set(pages):
            raise Broken
        return "DONE"

    def release_xfer_handle(self, handle: int) -> None:
        looks, _ = self.flying.pop(handle)
        if looks > 0:
            self.early.append(handle)


def move(agent: Slow, pages: int, cuts: int = 4, apart: bool = True) -> list[bool]:
    near = rows(np.arange(pages) * (25 if apart else 10), 10)
    far = rows(np.arange(pages) * 10, 10, 7)
    moved: list[bool] = Mover(agent, "FILE", (Broken,)).move("READ", near, far, cuts).tolist()  # type: ignore[arg-type]
    return moved


def test_a_batch_is_a_few_transfers_that_are_in_flight_at_once() -> None:
    agent = Slow(set())
    assert move(agent, 10) == [True] * 10
    assert agent.most == 4 and sorted(chain(*agent.started)) == list(range(10))
    assert max(map(len, agent.started)) - min(map(len, agent.started)) <= 1


def test_of_a_transfer_that_failed_each_page_is_tried_once_more_alone() -> None:
    agent = Slow({4, 9})
    assert move(agent, 12) == [page not in (4, 9) for page in range(12)]
    assert sorted(agent.started[4:]) == [[3], [4], [5], [9], [10], [11]]


def test_where_all_fail_nothing_is_tried_for_ever() -> None:
    agent = Slow(set(range(64)))
    assert move(agent, 64) == [False] * 64
    assert len(agent.started) == 4 + 64


def test_b092_no_transfer_is_let_go_before_its_end() -> None:
    agent = Slow({2})
    move(agent, 8)
    assert not agent.flying and not agent.early


def test_a_transfer_that_cannot_begin_has_failed() -> None:
    class Refusing(Slow):
        def transfer(self, handle: int) -> str:
            raise Broken

    agent = Refusing(set())
    assert move(agent, 3) == [False] * 3
    assert not agent.flying


def test_neighbours_on_both_sides_become_one_io() -> None:
    agent = Slow(set())
    assert move(agent, 8, cuts=1, apart=False) == [True] * 8
    near, far = rows(np.arange(8) * 10, 10), rows(np.arange(8) * 10, 10, 7)
    assert merged(near, joined(near, far)).tolist() == [[0, 80, 0]]


@pytest.mark.parametrize(("size", "runs"), [(JOINED, 8), (JOINED // 2, 4), (JOINED // 2 + 1, 8), (2 * JOINED, 8)])
def test_no_io_becomes_longer_than_what_gains(size: int, runs: int) -> None:
    near, far = rows(np.arange(8) * size, size), rows(np.arange(8) * size, size)
    assert len(joined(near, far)) == runs


def test_pages_of_different_files_are_not_joined() -> None:
    near, far = rows(np.arange(4) * 10, 10), rows(np.arange(4) * 10, 10, [1, 1, 2, 2])
    assert joined(near, far).tolist() == [0, 2]


@pytest.mark.parametrize("pages", [0, 1, 3, 4, 5, 63])
def test_cutting_loses_no_page(pages: int) -> None:
    parts = cut(np.arange(pages), pages, 4)
    assert list(chain(*(part.tolist() for part in parts))) == list(range(pages))
    assert len(parts) == min(4, pages) and all(len(part) for part in parts)
