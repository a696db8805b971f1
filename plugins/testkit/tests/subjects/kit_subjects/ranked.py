"""Right schedule policies that are told request by request, and what can be wrong with one."""

from heapq import merge as merge_sorted
from itertools import chain
from weakref import ref

from stepwell import RankedPolicy


class Urgent(RankedPolicy):
    """More urgent requests first, and of those, those with most cached; one group a priority."""

    probes = True
    max_passes = 16

    def place(self, request, view):
        return request.priority, -view.cached(request)

    def merge(self, groups, view):
        return chain.from_iterable(groups[name] for name in sorted(groups, reverse=True))


class Busiest(RankedPolicy):
    """Keys of which most run go first; sizes of groups are remembered for as long as there is no news of them."""

    def __init__(self):
        self.of = None
        self.sizes = {}

    def place(self, request, view):
        return request.routing_key, 0

    def merge(self, groups, view):
        news = groups.news()
        if self.of is None or self.of() is not groups:
            self.of, self.sizes, news = ref(groups), {}, set(groups)
        for name in news:
            self.sizes[name] = len(groups[name]) if name in groups else 0
        runs = [request.routing_key for request in view.running]
        order = sorted(groups, key=lambda name: (-runs.count(name), -self.sizes[name], groups[name].first.order))
        return chain.from_iterable(groups[name] for name in order)

    def __deepcopy__(self, memo):
        return type(self)()


class Shortest(RankedPolicy):
    """Fewest tokens first."""

    def place(self, request, view):
        return None, (request.length, request.max_new)


# --- one fault each ------------------------------------------------------------------------------------------------


class PlacesNowhere(Shortest):
    """Forgets to answer."""

    def place(self, request, view):
        super().place(request, view)


class PlacesByTime(Shortest):
    """The longer it waits the better its rank, which nobody works out anew."""

    def place(self, request, view):
        return None, request.length / (1 + view.now - request.arrival)


class PlacesByWhoRuns(Shortest):
    def place(self, request, view):
        return None, -sum(one.routing_key == request.routing_key for one in view.running)


class PlacesByWhatIsExpected(Shortest):
    def place(self, request, view):
        return None, view.expected(request)


class PlacesByPasses(Shortest):
    """Ages by itself; core does, and asks for no new place."""

    def place(self, request, view):
        return None, request.length - 16 * request.passes


class PlacesByTurn(Shortest):
    """Whoever is asked about first goes first."""

    def __init__(self):
        self.turns = {}

    def place(self, request, view):
        return None, self.turns.setdefault(request.rid, len(self.turns))


class ProbesUnsaid(Urgent):
    probes = False


class ProbesAnother(Urgent):
    """Asks about the request that it saw last, too."""

    last = None

    def place(self, request, view):
        if self.last is not None:
            view.cached(self.last)
        self.last = request
        return super().place(request, view)


class MixedRanks(Shortest):
    def place(self, request, view):
        return None, (request.length, 0) if request.priority else request.length


class NoNumber(Shortest):
    def place(self, request, view):
        return None, float("nan") if request.max_new == 0 else request.length


class RanksByName(Shortest):
    def place(self, request, view):
        return None, (request.routing_key or "", 0)


class MergesOnlyTheFirst(Urgent):
    """Whoever is less urgent waits until nobody else does; core reads an order to its end for a small queue."""

    def merge(self, groups, view):
        return iter(groups[max(groups)]) if groups else iter(())


class TurnsAGroup(Urgent):
    def merge(self, groups, view):
        return chain.from_iterable(reversed(list(groups[name])) for name in sorted(groups, reverse=True))


class MergesByAge(Urgent):
    """The oldest group first, and who came into it since goes with it: right. But it empties what it reads."""

    def merge(self, groups, view):
        while groups:
            name = min(groups, key=lambda name: groups[name].first.order)
            for request in list(groups[name]):
                groups.discard(request)
                yield request


class RemembersTheMerge(Urgent):
    """As long as as many wait it answers what it answered."""

    def __init__(self):
        self.answer = []

    def merge(self, groups, view):
        if sum(map(len, groups.values())) != len(self.answer):
            self.answer = list(super().merge(groups, view))
        return self.answer


class ForgetsWhoWent(Busiest):
    """Reads the news of groups that are there, and keeps the sizes of others for when they are back."""

    def merge(self, groups, view):
        for name in groups.news():
            if name in groups:
                self.sizes[name] = max(self.sizes.get(name, 0), len(groups[name]))
        order = sorted(groups, key=lambda name: (-self.sizes.get(name, 0), groups[name].first.order))
        return chain.from_iterable(groups[name] for name in order)


class NewsOfOneForAnother(Busiest):
    """Right as long as there is one queue, and as long as nobody asks for an order from scratch."""

    def merge(self, groups, view):
        for name in groups.news():
            self.sizes[name] = len(groups[name]) if name in groups else 0
        order = sorted(groups, key=lambda name: (-self.sizes.get(name, 0), groups[name].first.order))
        return chain.from_iterable(groups[name] for name in order)


class NoNews(Busiest):
    """Sizes of groups as they were when each came."""

    def merge(self, groups, view):
        if self.of is None or self.of() is not groups:
            self.of, self.sizes = ref(groups), {}
        for name in groups:
            self.sizes.setdefault(name, len(groups[name]))
        order = sorted(groups, key=lambda name: (-self.sizes[name], groups[name].first.order))
        return chain.from_iterable(groups[name] for name in order)


class OrdersOtherwise(Shortest):
    """An order of its own, which nobody asks for: core goes by the places."""

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: (-request.length, request.order))


class FallsBackInLongQueues(Shortest):
    def order(self, waiting, view):
        return super().order(waiting, view) if len(waiting) < 10 else list(waiting)


class MergesLatecomers(Shortest):
    """Two groups, merged by rank alone: of equals the later one may be first."""

    def place(self, request, view):
        return request.order % 2 == 0, request.length

    def merge(self, groups, view):
        names = sorted(groups)
        entries = merge_sorted(*(groups[name].entries for name in names), key=lambda entry: entry[0])
        return (entry[2] for entry in entries)
