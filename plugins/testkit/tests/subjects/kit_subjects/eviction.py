"""A right eviction policy, and what can be wrong with one."""

from __future__ import annotations

import random
from collections import OrderedDict

from stepwell import EvictionPolicy, take_pages


class Lru(EvictionPolicy):
    """Least recently used first."""

    def __init__(self) -> None:
        self.queue: OrderedDict = OrderedDict()

    def on_insert(self, segment):
        self.queue[segment] = None
        self.queue.move_to_end(segment)

    def on_hit(self, segment):
        self.on_insert(segment)

    def on_remove(self, segment):
        self.queue.pop(segment, None)

    def on_expose(self, segment):
        if segment not in self.queue:
            self.queue[segment] = None
            self.queue.move_to_end(segment, last=False)

    def victims(self, pages):
        return iter(self.queue)


class Listed(Lru):
    """As right, and answers a list instead of reading on demand."""

    def victims(self, pages):
        return take_pages(self.queue, pages)


# --- one fault each ------------------------------------------------------------------------------------------------


class ProposesRemoved(Lru):
    def on_remove(self, segment):
        pass


class EvictsOnProposal(Lru):
    def victims(self, pages):
        taken = take_pages(self.queue, pages)
        for segment in taken:
            del self.queue[segment]
        return taken


class RotatesOnProposal(Lru):
    def victims(self, pages):
        taken = take_pages(self.queue, pages)
        for segment in taken:
            self.queue.move_to_end(segment)
        return taken


class ForgetsTheHit(Lru):
    """Takes a used segment for safe for ever."""

    def on_hit(self, segment):
        self.queue.pop(segment, None)


class ForgetsReturns(Lru):
    def on_hit(self, segment):
        if segment in self.queue:
            self.queue.move_to_end(segment)


class ForgetsExposed(Lru):
    def on_expose(self, segment):
        pass


class ListsTwice(Lru):
    def __init__(self) -> None:
        self.list = []

    def on_insert(self, segment):
        self.list.append(segment)

    def on_hit(self, segment):
        if segment not in self.list:
            self.list.append(segment)

    def on_expose(self, segment):
        self.list.append(segment)

    def on_remove(self, segment):
        self.list = [other for other in self.list if other is not segment]

    def victims(self, pages):
        return take_pages(self.list, pages)


class ListsTheHead(Lru):
    def on_split(self, upper, lower):
        self.queue[upper] = None


class DropsTheTail(Lru):
    def on_split(self, upper, lower):
        self.queue.pop(lower, None)


class NeedsToKnowTheTail(Lru):
    def on_split(self, upper, lower):
        self.queue.move_to_end(lower)


class RemembersPages(Lru):
    """Adds up pages as they were when the segment came."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {}

    def on_insert(self, segment):
        super().on_insert(segment)
        self.sizes[segment] = segment.pages

    def on_remove(self, segment):
        super().on_remove(segment)
        self.sizes.pop(segment, None)

    def victims(self, pages):
        for segment in self.queue:
            if pages <= 0:
                return
            pages -= self.sizes.get(segment, 1)
            yield segment


class StopsAtOne(Lru):
    def victims(self, pages):
        return take_pages(self.queue, min(pages, 1))


class ProtectsTheLast(Lru):
    """Never proposes what was used last."""

    def victims(self, pages):
        return list(self.queue)[:-1]


class RaisesOnSecondRemoval(Lru):
    def on_remove(self, segment):
        del self.queue[segment]


class Dice(Lru):
    def victims(self, pages):
        return random.sample(list(self.queue), len(self.queue))


class DiceOnce(Lru):
    """Random, but not between two proposals."""

    def on_insert(self, segment):
        super().on_insert(segment)
        if random.random() < 0.5:
            self.queue.move_to_end(segment, last=False)


class ByAddress(Lru):
    def victims(self, pages):
        return sorted(self.queue, key=id)


class SharesItsQueue(Lru):
    queue: OrderedDict = OrderedDict()

    def __init__(self) -> None:
        pass


class KeepsGhosts(Lru):
    def __init__(self) -> None:
        super().__init__()
        self.ghosts = set()

    def on_remove(self, segment):
        super().on_remove(segment)
        self.ghosts.add(segment)


class LooksAtAll(Lru):
    def victims(self, pages):
        return sorted(self.queue, key=lambda segment: segment.last_used)


class HoldsALock(Lru):
    def __init__(self) -> None:
        import threading

        super().__init__()
        self.lock = threading.Lock()
