"""Frozen value types that every floor shares: needs, groups, page views, page results, sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

PageKey = bytes
"""40 bytes: the chain digest of the prefix that ends with this page, then its group's tag."""

Ids = npt.NDArray[np.int32]
"""Page ids of one group in one tier."""

DIGEST_BYTES = 32
TAG_BYTES = 8
TOKEN_BYTES = 4


class Tier(Enum):
    """Where a page can be."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Full:
    """Attention that needs the whole history."""

    def lo(self, length: int) -> int:
        """First token position that is needed to continue at `length`."""
        return 0


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window attention: the last `tokens` tokens of history (a model's window less one)."""

    tokens: int

    def lo(self, length: int) -> int:
        """First token position that is needed to continue at `length`."""
        return max(0, length - self.tokens)


@dataclass(frozen=True, slots=True)
class Chunked:
    """Chunked attention: the history since the last multiple of `tokens`."""

    tokens: int

    def lo(self, length: int) -> int:
        """First token position that is needed to continue at `length`."""
        return length // self.tokens * self.tokens


Need = Full | Window | Chunked


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The layers of a model that need the same history, and what a token of them takes.

    A runner says all but `shards`, which core sets before it sizes anything.
    """

    name: str
    need: Need
    token_bytes: int
    """Bytes of K and V (or latent) of one token over all layers of the group, on one rank."""
    layers: tuple[int, ...]
    heads: int = 1
    """KV heads on one rank; a latent is one."""
    ranks: int = 1
    """Ranks that hold different heads of a page. 1: there is one rank, or each holds the same."""
    shards: int = 1
    """Parts of a page on host and in storage: so many heads each, of all layers; a multiple of `ranks`."""

    @property
    def tag(self) -> bytes:
        """Eight bytes that tell this group's pages from another's in a page key, over however many ranks they lie."""
        return self._tag("")

    @property
    def tags(self) -> tuple[bytes, ...]:
        """The same of each part of a page, in the order of heads; storage keeps each as an object of its own."""
        if self.shards == 1:
            return (self.tag,)
        return tuple(self._tag(f"|{part}/{self.shards}") for part in range(self.shards))

    def _tag(self, part: str) -> bytes:
        text = f"{self.name}|{self.need!r}|{self.token_bytes * self.ranks}|{self.layers}{part}"
        return hashlib.sha256(text.encode()).digest()[:TAG_BYTES]


@dataclass(frozen=True, slots=True)
class Done:
    """The page was read or written whole."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The store does not hold the page."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The page could not be read or written; counted, and treated as a miss."""

    reason: str


PageResult = Done | Missing | Failed
DONE = Done()
MISSING = Missing()


class StoredPage(NamedTuple):
    """A page that a store holds."""

    key: PageKey
    nbytes: int
    """Size of what was written under the key."""


class ArenaView(Protocol):
    """Host memory that core owns and lends: shared, page-first, aligned for direct I/O."""

    @property
    def address(self) -> int:
        """Address of the first byte in this process."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def fd(self) -> int:
        """Descriptor of the shared memory, -1 where there is none."""

    @property
    def name(self) -> str:
        """Name of the shared memory in /dev/shm while it has one, else empty."""

    @property
    def memory(self) -> memoryview:
        """All bytes, writable."""

    def slots(self, group: int) -> tuple[int, int, int]:
        """(offset of slot 0's first part, stride between slots, payload bytes a part) of a group, in bytes."""

    def parts(self, group: int) -> tuple[int, int]:
        """(parts of a page in a slot, bytes from one to the next) of a group, as far as they are this rank's."""


class PageViews:
    """Memory of n pages as addresses [n, segments] and sizes [segments], and as buffers on demand.

    A backend with a native client reads `addresses` and never makes a Python object a page.
    """

    __slots__ = ("_memory", "_start", "addresses", "sizes")

    def __init__(
        self,
        addresses: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        memory: memoryview,
        start: int,
    ) -> None:
        self.addresses = addresses
        self.sizes = sizes
        self._memory = memory
        self._start = start

    @classmethod
    def of(cls, memory: memoryview, start: int, offsets: Sequence[int], size: int) -> PageViews:
        """Views of one segment a page at `offsets` into `memory`, whose first byte has address `start`."""
        addresses = np.asarray(offsets, dtype=np.int64).reshape(-1, 1) + start
        return cls(addresses, np.array([size], dtype=np.int64), memory, start)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, which: slice) -> PageViews:
        return PageViews(self.addresses[which], self.sizes, self._memory, self._start)

    def take(self, which: npt.NDArray[np.int64]) -> PageViews:
        """The pages at these places."""
        return PageViews(self.addresses[which], self.sizes, self._memory, self._start)

    def buffers(self) -> list[memoryview]:
        """One writable buffer a page. Pages of several segments have no single buffer: ValueError."""
        if len(self.sizes) != 1:
            raise ValueError(f"pages of {len(self.sizes)} segments have no single buffer")
        size = int(self.sizes[0])
        starts = (self.addresses[:, 0] - self._start).tolist()
        return [self._memory[at : at + size] for at in starts]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token of a request is chosen, and when it ends."""

    max_tokens: int = 128
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    """None: none; n: the chosen token's and those of the n most likely."""
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a sampled token, and of the most likely ones at its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Cached:
    """Prompt tokens that were not computed, by the tier they came from."""

    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.device + self.host + self.storage
