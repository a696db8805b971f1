"""What each attention group needs, counted in pages; the one place where lengths are rounded to pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.types import TOKEN_BYTES, Chunked, Full, GroupSpec, Need, Window

Lengths = npt.NDArray[np.int64]
UNBOUNDED = 2**31 - 1


def pages_of(tokens: int, page: int) -> int:
    """Pages that hold `tokens` tokens, the last perhaps in part."""
    return -(-tokens // page)


@dataclass(frozen=True, slots=True)
class Group:
    """A group's need in pages of `page` tokens."""

    spec: GroupSpec
    page: int
    full: bool
    first: Callable[[int], int]
    """First page needed to continue at a length of so many pages."""
    apart: int
    """Lengths that need no page are the multiples of so many; 0: only the length 0 is one."""

    def firsts(self, lengths: Lengths) -> Lengths:
        """`first` of many lengths."""
        match self.spec.need:
            case Full():
                return np.zeros_like(lengths)
            case Window(tokens):
                return np.maximum(lengths * self.page - tokens, 0) // self.page
            case Chunked(tokens):
                return lengths * self.page // tokens * tokens // self.page

    def bare(self, length: int) -> int:
        """The longest length, at most `length`, that needs no page; a chunk's boundary may lie amid absent ones."""
        return length // self.apart * self.apart if self.apart else 0

    def keeps_from(self, length: int) -> int:
        """First page that a request at `length` tokens keeps; the window at its last page multiple is among them."""
        match self.spec.need:
            case Full():
                return 0
            case Window(tokens):
                return max(0, length - pages_of(max(tokens, self.page), self.page) * self.page) // self.page
            case Chunked(tokens):
                return length // self.page * self.page // tokens * tokens // self.page

    def runs_in(self, length: int) -> int:
        """Pages with which a request of `length` tokens can run alone, computing a page at a time if it must."""
        pages = pages_of(length, self.page)
        match self.spec.need:
            case Full():
                return pages
            case Window(tokens) | Chunked(tokens):
                return min(pages, pages_of(max(tokens, self.page), self.page) + 1)

    def longest_in(self, pages: int) -> int:
        """The largest length that runs in `pages` pages."""
        return UNBOUNDED if self.runs_in(UNBOUNDED) <= pages else pages * self.page


def group_of(spec: GroupSpec, page: int) -> Group:
    """The needs of a group at a page size."""
    return Group(spec, page, isinstance(spec.need, Full), _first(spec.need, page), _apart(spec.need, page))


def _first(need: Need, page: int) -> Callable[[int], int]:
    match need:
        case Full():
            return lambda length: 0
        case Window(tokens):
            pages = pages_of(tokens, page)
            return lambda length: length - pages if length > pages else 0
        case Chunked(tokens):
            return lambda length: length * page // tokens * tokens // page


def _apart(need: Need, page: int) -> int:
    match need:
        case Chunked(tokens):
            return math.lcm(tokens, page) // page
        case Window(0):
            return 1
    return 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The groups of a model at one page size."""

    page: int
    groups: tuple[Group, ...]
    full: tuple[int, ...]
    """Groups that need the whole history: as long as they have a page, it stays in the tree."""
    windows: tuple[int, ...]
    """All others."""
    plan: tuple[tuple[int, Callable[[int], int]], ...]
    """Index and `first` of each of `windows`: what a match asks for, at hand."""
    windowed: bool
    """Whether some group needs the last page of any length."""

    @classmethod
    def of(cls, specs: tuple[GroupSpec, ...], page: int) -> Geometry:
        groups = tuple(group_of(spec, page) for spec in specs)
        full = tuple(g for g, group in enumerate(groups) if group.full)
        windows = tuple(g for g, group in enumerate(groups) if not group.full)
        plan = tuple((g, groups[g].first) for g in windows)
        windowed = bool(windows) and not all(groups[g].apart for g in windows)
        return cls(page, groups, full, windows, plan, windowed)

    @property
    def step(self) -> int:
        """Bytes of the tokens of one page."""
        return self.page * TOKEN_BYTES
