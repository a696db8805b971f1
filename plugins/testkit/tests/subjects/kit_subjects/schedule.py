"""A right schedule policy, and what can be wrong with one."""

import random
from itertools import cycle

from stepwell import SchedulePolicy


class Longest(SchedulePolicy):
    """Most cached tokens first."""

    max_passes = 16

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: -view.cached(request))


class Fcfs(SchedulePolicy):
    def order(self, waiting, view):
        return waiting


# --- one fault each ------------------------------------------------------------------------------------------------


class Idle(Longest):
    def order(self, waiting, view):
        return []


class Endless(Longest):
    """Begins again when it is done."""

    def order(self, waiting, view):
        return cycle(super().order(waiting, view))


class Drops(Longest):
    """Leaves out whatever has nothing cached while something else has."""

    def order(self, waiting, view):
        order = super().order(waiting, view)
        return [request for request in order if view.cached(request)] or order


class Repeats(Longest):
    def order(self, waiting, view):
        order = super().order(waiting, view)
        return order + order[:1]


class RepeatsForAnother(Longest):
    def order(self, waiting, view):
        order = super().order(waiting, view)
        return order[:-1] + order[:1]


class SortsInPlace(Longest):
    def order(self, waiting, view):
        waiting.sort(key=lambda request: -view.cached(request))
        return waiting


class GivesCopies(Longest):
    def order(self, waiting, view):
        from dataclasses import replace

        return [replace(request) for request in super().order(waiting, view)]


class ReadsOnce(Longest):
    """A lazy order that goes on where it was read to."""

    def __init__(self) -> None:
        self.asked, self.rest = None, iter(())

    def order(self, waiting, view):
        if self.asked != (list(waiting), view.version):
            self.asked, self.rest = (list(waiting), view.version), iter(super().order(waiting, view))
        return self.rest


class Starves(Longest):
    max_passes = 10**9


class StarvesByDegrees(Longest):
    """Moves its own bound."""

    def order(self, waiting, view):
        self.max_passes = max(self.max_passes, len(waiting) + 1)
        return super().order(waiting, view)


class NoBound(Longest):
    max_passes = None


class TiesByName(Longest):
    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: (-view.cached(request), request.rid))


class TiesReversed(Longest):
    def order(self, waiting, view):
        return sorted(waiting, key=view.cached)[::-1]


class Shuffles(Longest):
    def order(self, waiting, view):
        return random.sample(list(waiting), len(waiting))


class Remembers(Longest):
    """Looks once a request, and never again."""

    def __init__(self) -> None:
        self.seen = {}

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: -self.seen.setdefault(request.rid, view.cached(request)))


class RefusesEmpty(Longest):
    def order(self, waiting, view):
        first = waiting[0]
        return super().order(waiting, view) if first else []


class NeedsAKey(Longest):
    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: request.routing_key)


class DividesByCached(Longest):
    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: request.length / (request.max_new or view.cached(request)))


class FallsBackToNothing(Longest):
    """Gives up on long queues."""

    def order(self, waiting, view):
        return super().order(waiting, view)[:128]


class NoVictim(Longest):
    def victim(self, running, view):
        return next((request for request in running if request.priority == 0 and request.pages > 40), None)


class DiceVictim(Longest):
    def victim(self, running, view):
        return random.choice(running)
