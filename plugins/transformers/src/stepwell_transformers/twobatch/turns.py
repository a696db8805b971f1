"""Two functions that take turns on one thread: each goes on until it hands over, or has ended.

What a thread keeps (gradients, inference, autocast, the current stream) is not switched, so both run under what was
entered before them. Context variables are: each has its own copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import torch
from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")


class Turns:
    """One pair at a time, on the thread that runs it."""

    def __init__(self) -> None:
        self._pair: tuple[greenlet, ...] = ()
        self._modes: tuple[bool, ...] = ()

    def turn(self) -> None:
        """Let the other go on, where there is one; else go on."""
        own = getcurrent()
        if own not in self._pair:
            return
        if (modes := _modes()) != self._modes:
            raise RuntimeError(f"a half hands over within a mode of its own, which the other would take on: {modes}")
        other = self._pair[own is self._pair[0]]
        if not other.dead:
            other.switch()

    def run(self, first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
        """What both answer; `first` starts. Where one raises, the other ends at its turn, and that is raised."""
        if self._pair:
            raise RuntimeError("two halves are under way already")
        answers: dict[int, T] = {}

        def half(number: int, work: Callable[[], T]) -> None:
            answers[number] = work()

        self._modes = _modes()
        works = partial(half, 0, first), partial(half, 1, second)
        self._pair = tuple(greenlet(work) for work in works)
        for one in self._pair:
            one.gr_context = copy_context()
        try:
            for one in (*self._pair, self._pair[0]):  # a switch comes back when either of them has ended
                if not one.dead:
                    one.switch()
        finally:
            pair, self._pair = self._pair, ()
            for one in pair:
                _end(one)
        return answers[0], answers[1]


def _end(one: greenlet) -> None:
    """Let one that waits at its turn unwind; what else goes wrong then is not what went wrong."""
    if one:
        with suppress(Exception):
            one.throw(GreenletExit)


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )
