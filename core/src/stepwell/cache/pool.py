"""Page ids of one group in one tier: who holds them, and when they are free again.

A page's count is the number of its holders: the tree, each lease, each copy. Short runs of ids are looped over, long
ones handled as vectors; both work on the same memory.
"""

from __future__ import annotations

from array import array
from collections import deque

import numpy as np
import numpy.typing as npt

from stepwell.errors import AuditError
from stepwell.types import Ids

Flags = npt.NDArray[np.bool_]
SHORT = 24
"""Up to so many ids a loop is faster than a vector."""
NO_IDS: Ids = np.empty(0, dtype=np.int32)


class Pool:
    """Reference counts, the free list and the limbo of `total` pages. Ids within one call are distinct."""

    __slots__ = (
        "_cooling", "_free", "_free_view", "_limbo", "_limbo_pages", "_refs", "_released", "_tree",
        "busy", "completed", "free", "in_tree", "launched", "loosened", "refs", "stored", "taken", "total",
        "tree_only",
    )  # fmt: skip

    def __init__(self, total: int) -> None:
        self.total = total
        self._refs = array("i", bytes(4 * total))
        self.refs: Ids = np.frombuffer(self._refs, dtype=np.int32)
        self._tree = bytearray(total)
        self.in_tree = np.frombuffer(self._tree, dtype=np.bool_)
        self._free = array("i", range(total - 1, -1, -1))
        self._free_view: Ids = np.frombuffer(self._free, dtype=np.int32)
        self._released = np.zeros(total, dtype=np.int64)
        """The newest step that was launched when a lease last let go of the page."""
        self._limbo: dict[int, list[Ids]] = {}
        self._limbo_pages = 0
        self._cooling: deque[tuple[int, Ids]] = deque()
        self.busy = np.zeros(total, dtype=np.bool_)
        """Pages that are being copied down a tier."""
        self.stored = np.zeros(total, dtype=np.bool_)
        """Pages that were copied down a tier, which may have let go of them since."""
        self.free = total
        self.taken = 0
        """Pages that were ever allocated."""
        self.tree_only = 0
        self.loosened = 0
        """Grows whenever a page may have become one that the tree can let go of."""
        self.launched = 0
        self.completed = 0

    # region: counts

    @property
    def limbo(self) -> int:
        """Pages without a holder that a step in flight may still read or write."""
        return self._limbo_pages

    @property
    def held(self) -> int:
        """Pages that a lease or a copy holds."""
        return self.total - self.free - self._limbo_pages - self.tree_only

    def available(self) -> int:
        """Pages that are free, or would be once the tree let go of them."""
        return self.free + self.tree_only - self._still_cooling()

    def would_have(self, held: Ids, released: Ids) -> int:
        """Pages that would be free or evictable with one more holder of `held`, without one for each of `released`.

        And with no step in flight. `released` may have an id many times, once a holder.
        """
        ids, holders = np.unique(released[released >= 0], return_counts=True)
        others = self.refs[ids] - self.in_tree[ids] - holders + np.isin(ids, held)
        freed = int(np.count_nonzero(others == 0)) - int(np.count_nonzero(self._idle(held)))
        return self.free + self._limbo_pages + self.tree_only + freed

    def _still_cooling(self) -> int:
        if not self._cooling:
            return 0
        ids = np.unique(np.concatenate([batch for _, batch in self._cooling]))
        return int(np.count_nonzero(self._idle(ids) & (self._released[ids] > self.completed)))

    def _idle(self, ids: Ids) -> Flags:
        idle: Flags = (self.refs[ids] == 1) & self.in_tree[ids]
        return idle

    # endregion

    # region: taking and giving back

    def allocate(self, pages: int) -> Ids:
        """Take free pages; the caller is their holder."""
        if pages > self.free:
            raise AuditError(f"{pages} pages asked of a pool with {self.free} free")
        self.free -= pages
        self.taken += pages
        ids = self._free_view[self.free : self.free + pages][::-1].copy()
        self.refs[ids] = 1
        self.stored[ids] = False
        return ids

    def acquire(self, ids: Ids) -> None:
        """One more holder for pages that have one."""
        if len(ids) > SHORT:
            counts = self.refs[ids]
            if counts.min() < 1:
                raise AuditError("a free page cannot be held")
            self.tree_only -= int(np.count_nonzero((counts == 1) & self.in_tree[ids]))
            self.refs[ids] = counts + 1
            return
        refs, tree = self._refs, self._tree
        for page in ids.tolist():
            count = refs[page]
            if count < 1:
                raise AuditError(f"page {page} is free and cannot be held")
            if count == 1 and tree[page]:
                self.tree_only -= 1
            refs[page] = count + 1

    def release(self, ids: Ids, *, used: bool = True) -> None:
        """A holder lets go. `used`: a step in flight may still read or write the pages."""
        if used and self.launched > self.completed and len(ids):
            self._released[ids] = self.launched
            self._cooling.append((self.launched, ids.copy()))
        counts = self.refs[ids] - 1
        if len(ids) and counts.min() < 0:
            raise AuditError("a free page was freed")
        self.loosened += 1
        self.refs[ids] = counts
        self.tree_only += int(np.count_nonzero((counts == 1) & self.in_tree[ids]))
        self._let_go(ids[counts == 0])

    def plant(self, ids: Ids) -> None:
        """The tree, which has none of the pages yet, becomes a holder beside those that they have."""
        if len(ids) > SHORT:
            counts = self.refs[ids]
            if counts.min() < 1:
                raise AuditError("a free page cannot be held")
            self.refs[ids] = counts + 1
            self.in_tree[ids] = True
            return
        refs, tree = self._refs, self._tree
        for page in ids.tolist():
            if refs[page] < 1:
                raise AuditError(f"page {page} is free and cannot be held")
            refs[page] += 1
            tree[page] = 1

    def entrust(self, ids: Ids) -> None:
        """The caller's hold becomes the tree's."""
        self.loosened += 1
        self.in_tree[ids] = True
        self.tree_only += int(np.count_nonzero(self.refs[ids] == 1))

    def uproot(self, ids: Ids) -> int:
        """The tree lets go. Answers how many pages are free now."""
        self.loosened += 1
        if len(ids) > SHORT:
            counts = self.refs[ids] - 1
            if counts.min() < 0:
                raise AuditError("a free page was freed")
            self.refs[ids] = counts
            self.in_tree[ids] = False
            gone = ids[counts == 0]
            self.tree_only -= len(gone)
            return self._let_go(gone)
        refs, tree = self._refs, self._tree
        dead = []
        for page in ids.tolist():
            count = refs[page] - 1
            if count < 0:
                raise AuditError(f"page {page} was freed twice")
            refs[page] = count
            tree[page] = 0
            if count == 0:
                dead.append(page)
        self.tree_only -= len(dead)
        if self.launched > self.completed:
            return self._let_go(np.array(dead, dtype=np.int32))
        free, top = self._free, self.free
        for page in dead:
            free[top] = page
            top += 1
        self.free = top
        return len(dead)

    def _let_go(self, ids: Ids) -> int:
        if not len(ids):
            return 0
        if self.launched > self.completed:
            flying = self._released[ids] > self.completed
            if flying.any():
                self._wait(ids[flying])
                ids = ids[~flying]
        self._free_view[self.free : self.free + len(ids)] = ids
        self.free += len(ids)
        return len(ids)

    def _wait(self, ids: Ids) -> None:
        self._limbo_pages += len(ids)
        for step in np.unique(self._released[ids]).tolist():
            self._limbo.setdefault(step, []).append(ids[self._released[ids] == step])

    # endregion

    # region: steps

    def launch(self, step: int) -> None:
        """A step is in flight from now on."""
        self.launched = max(self.launched, step)

    def complete(self, step: int) -> None:
        """Steps up to `step` have ended."""
        self.loosened += 1
        self.completed = max(self.completed, step)
        for past in [past for past in self._limbo if past <= step]:
            for ids in self._limbo.pop(past):
                self._limbo_pages -= len(ids)
                self._let_go(ids)
        while self._cooling and self._cooling[0][0] <= step:
            self._cooling.popleft()

    # endregion

    def idle(self, page: bytes) -> bool:
        """Whether the tree alone holds a page, given as four bytes, and no step in flight uses it."""
        number = int.from_bytes(page, "little")
        return self._refs[number] == 1 and bool(
            self.launched <= self.completed or self._released[number] <= self.completed
        )

    def loose(self, ids: Ids) -> int:
        """How many of the last of `ids` the tree alone holds and no step in flight uses."""
        if len(ids) <= SHORT and self.launched <= self.completed:
            refs = self._refs
            count = 0
            for page in reversed(ids.tolist()):
                if refs[page] != 1:
                    break
                count += 1
            return count
        taken = (self.refs[ids] != 1) | (self._released[ids] > self.completed)
        return len(ids) - (int(np.flatnonzero(taken)[-1]) + 1 if taken.any() else 0)

    def loose_mask(self, ids: Ids) -> Flags:
        """Which of `ids`, -1 never, the tree alone holds and no step in flight uses."""
        loose: Flags = (ids >= 0) & (self.refs[ids] == 1) & (self._released[ids] <= self.completed)
        return loose

    def audit(self, holders: list[int], tree: list[int]) -> None:
        """Compare with the holders and tree pages that were counted from outside."""
        counted = np.bincount(np.array(holders, dtype=np.int64), minlength=self.total)
        if len(counted) > self.total or (wrong := np.flatnonzero(counted != self.refs)).size:
            page = int(wrong[0]) if len(counted) <= self.total else -1
            raise AuditError(f"page {page} has {self.refs[page]} counted holders, found {counted[page]}")
        planted = np.zeros(self.total, dtype=np.bool_)
        planted[tree] = True
        if len(tree) != int(planted.sum()):
            raise AuditError("a page is in the tree twice")
        if (planted != self.in_tree).any():
            raise AuditError(f"page {int(np.flatnonzero(planted != self.in_tree)[0])} is marked wrongly as in the tree")
        idle = self._free_view[: self.free].tolist() + [
            page for batches in self._limbo.values() for batch in batches for page in batch.tolist()
        ]
        if sorted(idle) != np.flatnonzero(counted == 0).tolist():
            raise AuditError("free and limbo together are not the pages without a holder")
        if len(idle) != self.free + self._limbo_pages:
            raise AuditError("the limbo is counted wrongly")
        if self.tree_only != int(np.count_nonzero(planted & (counted == 1))):
            raise AuditError("pages that only the tree holds are counted wrongly")
