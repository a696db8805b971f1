"""A reference dispatcher on the CPU, ranks as threads and queues between them, and what can be wrong with one."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

import numpy as np

from stepwell import Dispatched, Dispatcher, Format, PeerLost


class Mesh:
    """A queue from every rank to every other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.lines = [[queue.SimpleQueue() for _ in range(ranks)] for _ in range(ranks)]
        self.closed = 0


class Queues(Dispatcher):
    """A token goes to each rank once. A message carries the number of its exchange; an early one waits in a drawer."""

    format = Format.SORTED
    in_flight = 2
    room = None
    patience_s = 1.0

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh = mesh
        self.rank = rank
        self.sent = 0
        self.under_way = 0
        self.lost = False
        self.drawer = {}

    def open(self, traffic):
        self.traffic = traffic
        self.own = traffic.experts // self.mesh.ranks
        self.capacity = self.room

    def dispatch_start(self, tokens, experts, weights):
        self.admit(len(tokens))
        number = self.next()
        sent = []
        for to in range(self.mesh.ranks):
            here = self.local(experts, to)
            rows = np.nonzero((here >= 0).any(axis=1))[0]
            self.send(to, number, (tokens[rows], here[rows], weights[rows]))
            sent.append(rows)
        return number, sent, tokens.shape

    def admit(self, count):
        if self.lost:
            raise PeerLost("a rank is gone")
        limit = self.capacity or self.traffic.max_tokens
        if count > limit:
            raise ValueError(f"{count} tokens, with room for {limit}")
        if self.under_way == self.in_flight:
            raise RuntimeError(f"{self.in_flight} batches are under way")
        self.under_way += 1

    def local(self, experts, to):
        return np.where((experts >= 0) & (experts // self.own == to), experts - to * self.own, -1)

    def dispatch_finish(self, handle):
        number, sent, shape = handle
        parts = [self.receive(source, number) for source in range(self.mesh.ranks)]
        tokens, experts, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        lengths = [len(part[0]) for part in parts]
        return self.laid_out(tokens, experts, weights, (sent, shape, lengths))

    def laid_out(self, tokens, experts, weights, back):
        counts = np.bincount(experts[experts >= 0], minlength=self.own)
        if self.format is Format.ONCE:
            return Dispatched(tokens, counts, (back, None), experts, weights, rows=tuple(counts.tolist()))
        row, choice = np.nonzero(experts >= 0)
        order = np.argsort(experts[row, choice], kind="stable")
        row, choice = row[order], choice[order]
        where = (len(tokens), row, weights[row, choice, None])
        if self.format is Format.SORTED:
            return Dispatched(tokens[row], counts, (back, (*where, slice(None))), rows=tuple(counts.tolist()))
        local = experts[row, choice]
        filled = local, np.arange(len(row)) - (np.cumsum(counts) - counts)[local]
        masked = np.full((self.own, self.mesh.ranks * self.traffic.max_tokens, self.traffic.hidden), np.inf, np.float32)
        masked[filled] = tokens[row]
        return Dispatched(masked, counts, (back, (*where, filled)))

    def combine_start(self, outputs, dispatched):
        (sent, shape, lengths), where = dispatched.state
        sums = outputs.copy() if where is None else self.summed(outputs, *where)
        number, start = self.next(), 0
        for to, length in enumerate(lengths):
            self.send(to, number, sums[start : start + length])
            start += length
        return number, sent, shape

    def summed(self, outputs, count, row, weights, filled):
        sums = np.zeros((count, self.traffic.hidden), np.float32)
        np.add.at(sums, row, outputs[filled] * weights)
        return sums

    def combine_finish(self, handle):
        number, sent, shape = handle
        sums = np.zeros(shape, np.float32)
        for source, rows in enumerate(sent):
            sums[rows] += self.receive(source, number)
        self.under_way -= 1
        return sums

    def next(self):
        self.sent += 1
        return self.sent

    def send(self, to, number, message):
        self.mesh.lines[self.rank][to].put((number, message))

    def receive(self, source, number):
        while (source, number) not in self.drawer:
            early, message = self.take(source)
            self.drawer[source, early] = message
        return self.drawer.pop((source, number))

    def take(self, source):
        try:
            return self.mesh.lines[source][self.rank].get(timeout=self.patience_s)
        except queue.Empty:
            self.lost = True
            raise PeerLost(f"rank {source} is silent") from None


class Masked(Queues):
    format = Format.MASKED
    in_flight = 3
    room = 16


class Once(Queues):
    format = Format.ONCE
    in_flight = 1


def eighths(values):
    """Rounded as 8-bit floats are: 3 bits of mantissa, none below 2**-9."""
    power = np.maximum(np.frexp(values)[1], -5) - 4
    return np.ldexp(np.rint(np.ldexp(values, -power)), power).astype(np.float32)


class Scaled(Masked):
    """Tokens as 8-bit floats, with a scale for each 128 numbers."""

    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        runs = np.where(np.isfinite(right.tokens), right.tokens, 0).reshape(*right.tokens.shape[:-1], -1, 128)
        scales = self.scales(runs).astype(np.float32)
        return replace(right, tokens=eighths(runs / scales[..., None]).reshape(right.tokens.shape), scales=scales)

    def scales(self, runs):
        return np.maximum(np.abs(runs).max(axis=-1), 1e-9) / 448


class Auto(Dispatcher):
    """One of two."""

    def __init__(self, mesh, rank):
        self.normal, self.quick = Queues(Mesh(0), rank), Masked(Mesh(0), rank)
        self.normal.mesh, self.quick.mesh = mesh, mesh.__dict__.setdefault("second", Mesh(mesh.ranks))
        self.format, self.in_flight = self.normal.format, self.normal.in_flight
        for step in ("dispatch_finish", "combine_start", "combine_finish"):
            setattr(self, step, getattr(self.normal, step))

    def open(self, traffic):
        self.normal.open(traffic)
        self.quick.open(traffic)

    def pick(self, exchange):
        return self.normal if exchange.prefill or exchange.tokens > self.quick.capacity else self.quick

    def dispatch_start(self, tokens, experts, weights):
        return self.normal.dispatch_start(tokens, experts, weights)

    dispatch_finish = combine_start = combine_finish = dispatch_start


def group(cls, ranks=4):
    """One dispatcher a rank."""
    mesh = Mesh(ranks)
    return [cls(mesh, rank) for rank in range(ranks)]


# --- one fault each: where tokens go ---------------------------------------------------------------------------------


class NotSorted(Queues):
    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        back, (count, row, share, _) = right.state
        order = np.argsort(row, kind="stable")
        return replace(right, tokens=right.tokens[order], state=(back, (count, row[order], share[order], slice(None))))


class NoWeights(Queues):
    def dispatch_start(self, tokens, experts, weights):
        return super().dispatch_start(tokens, experts, np.ones_like(weights))


class MinusOneIsLast(Queues):
    def dispatch_start(self, tokens, experts, weights):
        return super().dispatch_start(tokens, experts % self.traffic.experts, weights)


class OnlyFirstChoice(Queues):
    def local(self, experts, to):
        here = super().local(experts, to)
        here[:, 1:] = -1
        return here


class IdleRankStaysAway(Queues):
    """Sends nothing where it has nothing: the others wait."""

    def send(self, to, number, message):
        first = message[0] if isinstance(message, tuple) else message
        if len(first):
            super().send(to, number, message)


class EmptyIsAnError(Queues):
    def dispatch_start(self, tokens, experts, weights):
        if len(tokens) == 0:
            raise ValueError("no tokens")
        return super().dispatch_start(tokens, experts, weights)


class SmallCapacity(Queues):
    """Room for 32 tokens an expert; the rest is dropped."""

    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        start = 0
        for count in right.counts.tolist():
            right.tokens[start + 32 : start + count] = 0
            start += count
        return right


class OneExpertMore(Queues):
    """Counts with a place for what goes nowhere."""

    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        return replace(right, counts=np.append(right.counts, 0))


class GuessedRows(Queues):
    """The host's counts are those of the batch before."""

    before = None

    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        told, self.before = self.before or right.rows, right.rows
        return replace(right, rows=told)


class SumsUnfilled(Masked):
    """Multiplies what is not filled by zero."""

    def summed(self, outputs, count, row, weights, filled):
        sums = super().summed(outputs, count, row, weights, filled)
        sums[:1] += (outputs * 0).sum()
        return sums


class FillsFromTheEnd(Masked):
    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        back, (count, row, share, (expert, place)) = right.state
        return replace(right, tokens=right.tokens[:, ::-1], state=(back, (count, row, share, (expert, -1 - place))))


class GlobalNumbers(Once):
    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        return replace(right, experts=np.where(experts >= 0, experts + self.rank * self.own, -1))


class WeighsTwice(Once):
    def combine_start(self, outputs, dispatched):
        share = np.where(dispatched.experts >= 0, dispatched.weights, 0).sum(axis=1, keepdims=True)
        return super().combine_start(outputs * share, dispatched)


class GivesOutputsBack(Once):
    """The sums are the very memory of the outputs."""

    def combine_start(self, outputs, dispatched):
        self.outputs = outputs
        return super().combine_start(outputs, dispatched)

    def combine_finish(self, handle):
        sums = super().combine_finish(handle)
        view = self.outputs[: len(sums)]
        view[:] = sums[: len(view)]
        return view if len(view) == len(sums) else sums


class OneScaleAToken(Scaled):
    def scales(self, runs):
        return np.broadcast_to(super().scales(runs).max(axis=-1, keepdims=True), runs.shape[:-1])


# --- one fault each: how many ----------------------------------------------------------------------------------------


class NoLimit(Queues):
    def admit(self, count):
        super().admit(min(count, self.traffic.max_tokens))


class RefusesLate(Queues):
    """Has sent to the first rank when it notices."""

    def admit(self, count):
        try:
            super().admit(count)
        except (ValueError, RuntimeError):
            self.next()
            raise


class RefusesWithoutNumbers(Queues):
    def admit(self, count):
        try:
            super().admit(count)
        except ValueError:
            raise ValueError("too many tokens") from None


class TakesEverMore(Queues):
    def admit(self, count):
        self.under_way = 0
        super().admit(count)


class InOrderOfArrival(Queues):
    """Takes what comes first for what it waits for."""

    def receive(self, source, number):
        return self.take(source)[1]


class OneBuffer(Queues):
    """What a finish gave is overwritten by the next finish."""

    def laid_out(self, tokens, experts, weights, back):
        right = super().laid_out(tokens, experts, weights, back)
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros((512, right.tokens.shape[1]), np.float32)
        view = self.buffer[: len(right.tokens)]
        view[:] = right.tokens
        return replace(right, tokens=view)


class OrderOfTheDay(Queues):
    """Adds up in another order when it is busy."""

    def combine_finish(self, handle):
        number, sent, shape = handle
        if self.under_way > 1:
            handle = number, sent, shape
            parts = [(rows, self.receive(source, number)) for source, rows in enumerate(sent)]
            sums = np.zeros(shape, np.float32)
            for rows, part in parts[::-1]:
                sums[rows] += part * np.float32(1 + 1e-7)
            self.under_way -= 1
            return sums
        return super().combine_finish(handle)


class SendsWhatItWasLent(Queues):
    """Adds up on top of the round before."""

    def combine_finish(self, handle):
        sums = super().combine_finish(handle)
        before = getattr(self, "before", None)
        self.before = sums.copy()
        return sums + before if before is not None and before.shape == sums.shape else sums


class OneSum(Queues):
    """All sums are one memory."""

    def combine_finish(self, handle):
        sums = super().combine_finish(handle)
        if not hasattr(self, "memory"):
            self.memory = np.zeros((512, sums.shape[1]), np.float32)
        self.memory[: len(sums)] = sums
        return self.memory[: len(sums)]


# --- one fault each: choosing, closing, losing -----------------------------------------------------------------------


class PicksTooSmall(Auto):
    def pick(self, exchange):
        return self.normal if exchange.prefill else self.quick


class PicksNothing(Queues):
    def pick(self, exchange):
        return None


class RanksDiffer(Queues):
    def open(self, traffic):
        super().open(traffic)
        self.in_flight = 1 + self.rank % 2


class RaisesOnClose(Queues):
    def close(self):
        if getattr(self, "over", False):
            raise RuntimeError("already closed")
        self.over = True


class ClosesTogether(Queues):
    def close(self):
        self.mesh.closed += 1
        while self.mesh.closed < self.mesh.ranks:
            time.sleep(0.01)


class ClosesOnlyWhatIsOpen(Queues):
    def close(self):
        del self.traffic
        self.close = lambda: None


class Hangs(Queues):
    def combine_finish(self, handle):
        if self.rank == 1:
            time.sleep(60)
        return super().combine_finish(handle)


class WaitsForEver(Queues):
    patience_s = 60.0


class TriesAgain(Queues):
    """Forgets that a rank is gone."""

    patience_s = 0.3

    def admit(self, count):
        self.lost = False
        super().admit(count)


class DoesWithout(Queues):
    """Takes nothing for what does not come."""

    patience_s = 0.3

    def receive(self, source, number):
        try:
            return super().receive(source, number)
        except PeerLost:
            empty = np.zeros((0, self.traffic.hidden), np.float32)
            choice = np.zeros((0, self.traffic.top_k))
            return (empty, choice.astype(np.int64), choice.astype(np.float32))


class SaysTimeout(Queues):
    """Another error than that of a lost rank."""

    patience_s = 0.3

    def take(self, source):
        try:
            return super().take(source)
        except PeerLost as lost:
            raise TimeoutError(str(lost)) from None
