"""Reference balancers, and what can be wrong with one."""

from __future__ import annotations

import random
import time

import numpy as np

from stepwell import Balancer, ConfigError, Placement
from stepwell_testkit.balance.judge import worst
from stepwell_testkit.balance.scenes import Scene


class Rounds(Balancer):
    """Replicas by load; then experts, the hottest first, over the ranks in turn, so that none is twice on one."""

    def place(self, load, topology, current):
        self.check(load, topology, current)
        placed = np.array([self.layer(row, topology) for row in load], np.int32)
        if current is None:
            return Placement(placed)
        better = worst(Scene(load, topology), placed) < worst(Scene(load, topology), current.experts)
        chosen = [new if gains else old for gains, new, old in zip(better, placed, current.experts, strict=True)]
        return Placement(self.in_its_slot(np.array(chosen, np.int32), current.experts, topology))

    def check(self, load, topology, current):
        if load.ndim != 2:
            raise ConfigError(f"a load of shape {load.shape} is not one of layers and experts")
        experts = load.shape[1]
        if topology.slots < experts:
            raise ConfigError(f"{topology.slots} slots are too few for {experts} experts")
        if topology.ranks % topology.nodes or experts % topology.groups:
            raise ConfigError(f"{topology} does not divide for {experts} experts")
        if current is not None and current.experts.shape != (len(load), topology.slots):
            raise ConfigError(f"the placement is of shape {current.experts.shape}")

    def layer(self, load, topology):
        return self.dealt(load, self.replicas(load, topology.slots, topology.ranks), topology.ranks)

    def replicas(self, load, slots, ranks):
        count = np.ones(len(load), np.int64)
        for _ in range(slots - len(load)):
            share = load / count
            share[count == ranks] = -1
            count[share.argmax()] += 1
        return count

    def dealt(self, load, count, ranks):
        order = np.argsort(-load / count, kind="stable")
        return np.repeat(order, count[order]).reshape(-1, ranks).T.ravel()

    def in_its_slot(self, placed, current, topology):
        shape = (len(placed), topology.ranks, topology.slots_per_rank)
        sides = zip(placed.reshape(shape), current.reshape(shape), strict=True)
        return np.array(
            [[self.arranged(new, old) for new, old in zip(*side, strict=True)] for side in sides], np.int32
        ).reshape(placed.shape)

    def arranged(self, new, old):
        left, found = list(new), [-1] * len(new)
        for slot, expert in enumerate(old):
            if expert in left:
                left.remove(expert)
                found[slot] = expert
        return [left.pop(0) if expert == -1 else expert for expert in found]


class Nodes(Rounds):
    """Deals groups to nodes first."""

    def layer(self, load, topology):
        nodes, groups = topology.nodes, topology.groups
        if groups == 1 or groups % nodes:
            return super().layer(load, topology)
        members = np.arange(len(load)).reshape(groups, -1)
        order = np.argsort(-load[members].sum(axis=1), kind="stable")
        ranks = topology.ranks // nodes
        placed = []
        for node in range(nodes):
            own = members[order[node::nodes]].ravel()
            placed.append(own[self.dealt(load[own], self.replicas(load[own], topology.slots // nodes, ranks), ranks)])
        return np.concatenate(placed)


# --- one fault each --------------------------------------------------------------------------------------------------


class NotDerived:
    place, check, layer, replicas, dealt = Rounds.place, Rounds.check, Rounds.layer, Rounds.replicas, Rounds.dealt


class WideNumbers(Rounds):
    def place(self, load, topology, current):
        return Placement(super().place(load, topology, current).experts.astype(np.int64))


class ForgetsTheColdest(Rounds):
    def layer(self, load, topology):
        placed = super().layer(load, topology)
        placed[placed == load.argmin()] = load.argmax()
        return placed


class PacksByLoadAlone(Rounds):
    """Each replica, the hottest first, on the emptiest rank with room."""

    def dealt(self, load, count, ranks):
        order = np.argsort(-load / count, kind="stable")
        room = count.sum() // ranks
        held, full = [[] for _ in range(ranks)], np.zeros(ranks)
        for expert in np.repeat(order, count[order]).tolist():
            rank = min((rank for rank in range(ranks) if len(held[rank]) < room), key=lambda rank: full[rank])
            held[rank].append(expert)
            full[rank] += load[expert] / count[expert]
        return np.concatenate(held)


class TiesByChance(Rounds):
    def dealt(self, load, count, ranks):
        return super().dealt(load + np.random.random(len(load)) / 2, count, ranks)


class TiesByThread(Rounds):
    """Draws from a generator that each process seeds for itself."""

    def replicas(self, load, slots, ranks):
        return super().replicas(load + (random.random() - 0.5) * (np.arange(len(load)) % 2), slots, ranks)


class Remembers(Rounds):
    """A mean over what it has seen."""

    before = None

    def layer(self, load, topology):
        seen = load if self.before is None or len(self.before) != len(load) else (load + self.before) // 2
        self.before = load
        return super().layer(seen, topology)


class ReadsMemory(Rounds):
    """Takes numbers in the order in which they lie in memory."""

    def place(self, load, topology, current):
        self.check(load, topology, current)
        return super().place(load.ravel(order="K").reshape(load.shape), topology, current)


class OneScratch(Rounds):
    """Two calls at once share what they compute with."""

    def layer(self, load, topology):
        self.load = load
        time.sleep(1e-4)
        return super().layer(self.load if len(self.load) == len(load) else load, topology)


class NeedsTokens(Rounds):
    def layer(self, load, topology):
        share = load * 1_000 // load.sum(keepdims=True)
        if load.sum() == 0:
            raise ZeroDivisionError
        return super().layer(share, topology)


class ScalesTheLoad(Rounds):
    def place(self, load, topology, current):
        self.check(load, topology, current)
        load += 1
        return super().place(load, topology, current)


class SortsTheCurrent(Rounds):
    def place(self, load, topology, current):
        if current is not None:
            current.experts.sort()
        return super().place(load, topology, current)


class MovesWithin(Rounds):
    def in_its_slot(self, placed, current, topology):
        return np.sort(placed.reshape(len(placed), topology.ranks, -1), axis=2).reshape(placed.shape)


class AlwaysAnew(Rounds):
    def place(self, load, topology, current):
        anew = super().place(load, topology, None)
        if current is None:
            return anew
        return Placement(self.in_its_slot(anew.experts, current.experts, topology))


class ReplicatesInOrder(Rounds):
    def replicas(self, load, slots, ranks):
        return np.bincount(np.arange(slots) % len(load), minlength=len(load))


class TakesWhatItGets(Rounds):
    def check(self, load, topology, current):
        """Sees no mistake."""


class SaysMore(Rounds):
    def check(self, load, topology, current):
        try:
            super().check(load, topology, current)
        except ConfigError as error:
            raise ConfigError(f"cannot place:\n  {error}") from error
