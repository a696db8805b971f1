"""What lies where in a peer's memory: slots for keys, the oldest leaving first, and none given away that is in use.

Pure: no clock, no I/O. The memory is divided into slabs, each of which holds pages of one size at a time. A slot is
free, being written (by one), or holds a page; while somebody reads it, it is pinned. A page that leaves while it is
pinned is found no more, and its slot becomes free with the last pin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepwell import PageKey, StoredPage


@dataclass(slots=True, eq=False)
class Slab:
    """A part of the memory."""

    offset: int
    size: int = 0
    """Bytes of a page in it; 0: not in use."""
    free: list[int] = field(default_factory=list)
    """Offsets of free slots."""
    busy: int = 0
    """Slots that are being written, and pins."""
    pages: dict[int, Slot] = field(default_factory=dict)
    """What lies in it, by offset."""


@dataclass(slots=True, eq=False)
class Slot:
    """Room for one page."""

    slab: Slab
    offset: int
    key: PageKey
    at: float = 0.0
    """When it was published."""
    pins: int = 0
    found: bool = False
    """Whether a look-up finds it."""


class Book:
    """The books of one region of memory."""

    def __init__(self, nbytes: int, slab_bytes: int, ttl_s: float = 0.0) -> None:
        self.slab_bytes = min(slab_bytes, nbytes)
        self._slabs = [Slab(at * self.slab_bytes) for at in range(nbytes // self.slab_bytes)]
        self._unused = self._slabs[::-1]
        self._roomy: dict[int, list[Slab]] = {}
        """By size of a page: slabs with free slots."""
        self._pages: OrderedDict[PageKey, Slot] = OrderedDict()
        """In the order in which they came. A plain dict is slow to begin with what is left of it."""
        self._ttl_s = ttl_s
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, key: PageKey, now: float, size: int = 0) -> Slot | None:
        """The slot of a page (of this size)."""
        slot = self._pages.get(key)
        if slot is None or (size and slot.slab.size != size):
            return None
        if self._ttl_s and slot.at < now - self._ttl_s:
            self.remove(slot)
            return None
        return slot

    def allocate(self, key: PageKey, size: int) -> Slot | None:
        """A slot to write a page to; None where nothing may leave for it."""
        roomy = self._roomy.get(size)
        slab = roomy[-1] if roomy else self._made_room(size)
        if slab is None:
            return None
        slab.busy += 1
        free = slab.free
        offset = free.pop()
        if not free:
            self._roomy[size].remove(slab)
        return Slot(slab, offset, key)

    def publish(self, slot: Slot, now: float) -> None:
        """The page was written: from now on it is found. Where the key has a page of that size already, that stays."""
        slot.slab.busy -= 1
        old = self.find(slot.key, now, slot.slab.size)
        if old is not None:
            self._give_back(slot)
            return
        other = self._pages.get(slot.key)
        if other is not None:
            self.remove(other)
        slot.at, slot.found = now, True
        self._pages[slot.key] = slot
        slot.slab.pages[slot.offset] = slot

    def abandon(self, slot: Slot) -> None:
        """It was not written."""
        slot.slab.busy -= 1
        self._give_back(slot)

    def pin(self, slot: Slot) -> None:
        """Keep the slot as it is."""
        slot.pins += 1
        slot.slab.busy += 1

    def unpin(self, slot: Slot) -> None:
        """Undo one pin."""
        slot.pins -= 1
        slot.slab.busy -= 1
        if not slot.pins and not slot.found:
            self._give_back(slot)

    def remove(self, slot: Slot) -> None:
        """Let a page be found no more."""
        if not slot.found:
            return
        slot.found = False
        del self._pages[slot.key]
        del slot.slab.pages[slot.offset]
        if not slot.pins:
            self._give_back(slot)

    def pages(self) -> Iterator[StoredPage]:
        """What is found."""
        return (StoredPage(key, slot.slab.size) for key, slot in self._pages.items())

    # --- room ------------------------------------------------------------------------------------------------------

    def _made_room(self, size: int) -> Slab | None:
        """A slab with a free slot, where there was none."""
        if size > self.slab_bytes or size <= 0:
            return None
        if self._unused:
            return self._assign(self._unused.pop(), size)
        idle = next((slab for slab in self._slabs if slab.size != size and not slab.busy and not slab.pages), None)
        if idle is not None:
            self._empty(idle)
            return self._assign(idle, size)
        for slot in self._pages.values():  # oldest first; those that are in use are few
            slab = slot.slab
            if slab.size == size and not slot.pins:
                self.remove(slot)
                self.evicted += 1
                return slab
            if slab.size != size and not slab.busy:
                self._empty(slab)
                return self._assign(slab, size)
        return None

    def _assign(self, slab: Slab, size: int) -> Slab:
        slab.size = size
        count = self.slab_bytes // size
        slab.free = [slab.offset + at * size for at in reversed(range(count))]
        self._roomy.setdefault(size, []).append(slab)
        return slab

    def _empty(self, slab: Slab) -> None:
        """Let all pages of a slab leave that nobody uses."""
        self.evicted += len(slab.pages)
        for slot in list(slab.pages.values()):
            self.remove(slot)
        self._roomy[slab.size].remove(slab)

    def _give_back(self, slot: Slot) -> None:
        slab = slot.slab
        if not slab.free:
            self._roomy[slab.size].append(slab)
        slab.free.append(slot.offset)


def split(keys: bytes, length: int) -> Sequence[PageKey]:
    """Keys of one length out of one string."""
    return [keys[at : at + length] for at in range(0, len(keys), length)]
