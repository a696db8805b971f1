"""A double of a dispatcher, between ranks that are threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

from stepwell import Dispatched, Dispatcher, Format, Offer, Part, Traffic
from stepwell_transformers.experts.place import ExpertPlace


class Table:
    """Where threads put down what the others take, in rounds that each of them counts by itself."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._put: dict[tuple[int, int], object] = {}
        self._news = threading.Condition()

    def put(self, turn: int, rank: int, thing: object) -> None:
        with self._news:
            self._put[turn, rank] = thing
            self._news.notify_all()

    def take(self, turn: int) -> list[Any]:
        keys = [(turn, rank) for rank in range(self.size)]
        with self._news:
            assert self._news.wait_for(lambda: all(key in self._put for key in keys), 30), "a rank did not come"
            return [self._put[key] for key in keys]


@dataclass(frozen=True)
class TableConfig:
    table: Table
    format: Format = Format.SORTED
    capacity: int | None = None
    in_flight: int = 2
    calls: list[str] | None = None


class TableDispatcher(Dispatcher[torch.Tensor]):
    """A double of a dispatcher: what goes over wires elsewhere is put on a table here."""

    def __init__(self, config: TableConfig, place: ExpertPlace) -> None:
        self._config, self._rank = config, place.rank
        self.format, self.capacity, self.in_flight = config.format, config.capacity, config.in_flight
        self._turn = self._open = 0

    def open(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._local = traffic.experts // self._config.table.size

    def _say(self, what: str) -> None:
        if self._config.calls is not None:
            self._config.calls.append(what)

    def _send(self, thing: object) -> int:
        self._turn += 1
        self._config.table.put(self._turn, self._rank, thing)
        return self._turn

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> int:
        most = self.traffic.max_tokens if self.capacity is None else self.capacity
        if len(tokens) > most:
            raise ValueError(f"{len(tokens)} tokens, and {most} at most")
        assert experts.shape == weights.shape == (len(tokens), self.traffic.top_k), "as the traffic says"
        assert (experts.dtype, weights.dtype) == (torch.int64, torch.float32)
        self._open += 1
        if self._open > self.in_flight:
            raise RuntimeError(f"{self._open} batches in flight, and {self.in_flight} at most")
        self._say(f"dispatch {len(tokens)}")
        return self._send((tokens.clone(), experts.clone(), weights.clone()))

    def dispatch_finish(self, handle: int) -> Dispatched[torch.Tensor]:
        self._say("arrived")
        sent = self._config.table.take(handle)
        tokens, experts, weights = (torch.cat([one[i] for one in sent]) for i in range(3))
        first = self._rank * self._local
        own = torch.where((experts >= first) & (experts < first + self._local), experts - first, -1)
        counts = torch.bincount(own[own >= 0], minlength=self._local)
        state = [len(one[0]) for one in sent], own, weights
        if self.format is Format.ONCE:
            return Dispatched(tokens, counts, state, own, weights)
        rows = [torch.nonzero((own == expert).any(1))[:, 0] for expert in range(self._local)]
        state = (*state, rows)
        if self.format is Format.SORTED:
            return Dispatched(tokens[torch.cat(rows)], counts, state)
        padded = torch.full((self._local, max(1, int(counts.max())), tokens.shape[1]), torch.nan)
        for expert, row in enumerate(rows):
            padded[expert, : len(row)] = tokens[row]
        return Dispatched(padded, counts, state)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> tuple[int, list[int]]:
        lengths, own, weights, *rows = dispatched.state
        if self.format is Format.ONCE:
            sums = outputs
        else:
            sums = torch.zeros((len(own), self.traffic.hidden), dtype=outputs.dtype)
            counts = dispatched.counts.tolist()
            parts = outputs.split(counts) if self.format is Format.SORTED else [*map(_first, outputs, counts)]
            for expert, (row, part) in enumerate(zip(rows[0], parts, strict=True)):
                sums[row] += part * (weights[row] * (own[row] == expert)).sum(1, keepdim=True)
        return self._send(sums), lengths

    def combine_finish(self, handle: tuple[int, list[int]]) -> torch.Tensor:
        turn, lengths = handle
        self._say("combined")
        self._open -= 1
        parts = [sums.split(lengths)[self._rank] for sums in self._config.table.take(turn)]
        return torch.stack(parts).sum(0)


def _first(rows: torch.Tensor, count: int) -> torch.Tensor:
    return rows[:count]


def part_of(config: TableConfig, **more: Any) -> Part[Any]:
    return Part(Offer("table", TableDispatcher, TableConfig, **more), config)
