"""A right route policy, and what can be wrong with one."""

import random

from stepwell import RoutePolicy


class Least(RoutePolicy):
    """Where the least is left to do."""

    def choose(self, replicas, length, routing_key):
        return min(range(len(replicas)), key=lambda at: self.work(replicas[at], length))

    def work(self, one, length):
        return length - one.cached_tokens + one.waiting_tokens + 64 * one.running, one.sent, one.name


# --- one fault each ------------------------------------------------------------------------------------------------


class SaysTheName(Least):
    def choose(self, replicas, length, routing_key):
        return replicas[super().choose(replicas, length, routing_key)].name


class CountsFromOne(Least):
    def choose(self, replicas, length, routing_key):
        return super().choose(replicas, length, routing_key) + 1


class NeedsAKey(Least):
    def choose(self, replicas, length, routing_key):
        return len(routing_key.encode()) % len(replicas)


class RollsDice(Least):
    def choose(self, replicas, length, routing_key):
        return random.randrange(len(replicas))


class TakesTurns(Least):
    turn = 0

    def choose(self, replicas, length, routing_key):
        self.turn += 1
        return self.turn % len(replicas)


class SortsThem(Least):
    def choose(self, replicas, length, routing_key):
        if isinstance(replicas, list):
            replicas.sort(key=lambda one: self.work(one, length))
            return 0
        return super().choose(replicas, length, routing_key)


class ByPlace(Least):
    def choose(self, replicas, length, routing_key):
        return len(routing_key or "") % len(replicas)


class AlwaysTheSame(Least):
    def choose(self, replicas, length, routing_key):
        return min(range(len(replicas)), key=lambda at: replicas[at].name)


class OnlyTheCache(Least):
    def work(self, one, length):
        return -one.cached_tokens, one.running, one.sent, one.name
