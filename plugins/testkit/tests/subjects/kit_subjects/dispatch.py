"""A reference dispatcher on the CPU, ranks as threads and queues between them, and what can be wrong with one."""

from __future__ import annotations

import queue
import time

import numpy as np

from stepwell import Dispatched, Dispatcher


class Mesh:
    """A queue from every rank to every other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.lines = [[queue.SimpleQueue() for _ in range(ranks)] for _ in range(ranks)]


class Queues(Dispatcher):
    """Every message carries the number of its exchange; what comes early waits in a drawer."""

    def __init__(self, mesh: Mesh, rank: int, experts: int) -> None:
        self.mesh = mesh
        self.rank = rank
        self.own = experts // mesh.ranks
        self.sent = 0
        self.drawer = {}

    def dispatch_start(self, tokens, experts):
        number = self.next()
        slots = []
        for to in range(self.mesh.ranks):
            rows, ks = self.route(experts, to)
            slots.append((rows, ks))
            self.send(to, number, (tokens[rows], experts[rows, ks] - to * self.own))
        return number, slots, tokens.shape

    def route(self, experts, to):
        return np.nonzero((experts >= 0) & (experts // self.own == to))

    def dispatch_finish(self, handle):
        number, slots, shape = handle
        parts = [self.receive(source, number) for source in range(self.mesh.ranks)]
        tokens = np.concatenate([part[0] for part in parts])
        local = np.concatenate([part[1] for part in parts])
        order = np.argsort(local, kind="stable")
        counts = np.bincount(local, minlength=self.own)
        return Dispatched(tokens[order], counts, (slots, shape, order, [len(part[1]) for part in parts]))

    def combine_start(self, outputs, dispatched, weights):
        slots, shape, order, lengths = dispatched.state
        number = self.next()
        back = np.empty_like(outputs)
        back[order] = outputs
        start = 0
        for to, length in enumerate(lengths):
            self.send(to, number, back[start : start + length])
            start += length
        return number, slots, shape, weights

    def combine_finish(self, handle):
        number, slots, shape, weights = handle
        sums = np.zeros(shape, np.float32)
        for source, (rows, ks) in enumerate(slots):
            np.add.at(sums, rows, self.receive(source, number) * weights[rows, ks][:, None])
        return sums

    def next(self):
        self.sent += 1
        return self.sent

    def send(self, to, number, message):
        self.mesh.lines[self.rank][to].put((number, message))

    def receive(self, source, number):
        while (source, number) not in self.drawer:
            early, message = self.mesh.lines[source][self.rank].get()
            self.drawer[source, early] = message
        return self.drawer.pop((source, number))


def group(cls, ranks=4, experts=8):
    """One dispatcher a rank."""
    mesh = Mesh(ranks)
    return [cls(mesh, rank, experts) for rank in range(ranks)]


# --- one fault each ------------------------------------------------------------------------------------------------


class InOrderOfArrival(Queues):
    """Takes what comes first for what it waits for."""

    def receive(self, source, number):
        return self.mesh.lines[source][self.rank].get()[1]


class NotSorted(Queues):
    def dispatch_finish(self, handle):
        right = super().dispatch_finish(handle)
        slots, shape, order, lengths = right.state
        tokens = np.empty_like(right.tokens)
        tokens[order] = right.tokens
        return Dispatched(tokens, right.counts, (slots, shape, np.arange(len(order)), lengths))


class NoWeights(Queues):
    def combine_start(self, outputs, dispatched, weights):
        return super().combine_start(outputs, dispatched, np.ones_like(weights))


class MinusOneIsLast(Queues):
    def route(self, experts, to):
        return np.nonzero(experts % (self.own * self.mesh.ranks) // self.own == to)

    def dispatch_start(self, tokens, experts):
        return super().dispatch_start(tokens, experts % (self.own * self.mesh.ranks))


class OnlyFirstChoice(Queues):
    def route(self, experts, to):
        rows, ks = super().route(experts, to)
        return rows[ks == 0], ks[ks == 0]


class IdleRankStaysAway(Queues):
    """Sends nothing where it has nothing: the others wait."""

    def send(self, to, number, message):
        first = message[0] if isinstance(message, tuple) else message
        if len(first):
            super().send(to, number, message)


class EmptyIsAnError(Queues):
    def dispatch_start(self, tokens, experts):
        if len(tokens) == 0:
            raise ValueError("no tokens")
        return super().dispatch_start(tokens, experts)


class SmallCapacity(Queues):
    """Room for 32 tokens an expert; the rest is dropped."""

    def dispatch_finish(self, handle):
        right = super().dispatch_finish(handle)
        tokens = right.tokens.copy()
        start = 0
        for count in right.counts.tolist():
            tokens[start + 32 : start + count] = 0
            start += count
        return Dispatched(tokens, right.counts, right.state)


class OneExpertMore(Queues):
    """Counts with a place for what goes nowhere."""

    def dispatch_finish(self, handle):
        right = super().dispatch_finish(handle)
        return Dispatched(right.tokens, np.append(right.counts, 0), right.state)


class OneBuffer(Queues):
    """What a finish gave is overwritten by the next finish."""

    def dispatch_finish(self, handle):
        right = super().dispatch_finish(handle)
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros((512, right.tokens.shape[1]), np.float32)
        view = self.buffer[: len(right.tokens)]
        view[:] = right.tokens
        return Dispatched(view, right.counts, right.state)


class SendsWhatItWasLent(Queues):
    """Adds up on top of the round before."""

    def combine_finish(self, handle):
        sums = super().combine_finish(handle)
        before = getattr(self, "before", None)
        self.before = sums.copy()
        return sums + before if before is not None and before.shape == sums.shape else sums


class Hangs(Queues):
    def combine_finish(self, handle):
        if self.rank == 1:
            time.sleep(60)
        return super().combine_finish(handle)


class RaisesOnClose(Queues):
    def close(self):
        raise RuntimeError("already closed")
