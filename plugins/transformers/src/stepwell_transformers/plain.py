"""Steps by plain torch, one after another on a worker thread, so that the next one is planned while one runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from stepwell import PageCopy, PeerLost, Row, Step, StepPlan, StepResult, TokenLogprob
from stepwell_kernels import HostPages, PagePool, RaggedRow, load_layer, save
from stepwell_transformers.executor import Executor, Flight
from stepwell_transformers.experts import Told
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import GroupStep, PlainPaging, lay_out
from stepwell_transformers.sampling import sample
from stepwell_transformers.slots import Slot
from stepwell_transformers.together import Company, Inbox
from stepwell_transformers.twobatch import Overlap, Size

CLOSE_S = 30.0


class PlainExecutor(Executor):
    """Runs on any device."""

    def __init__(
        self,
        model: PagedModel,
        pools: Sequence[PagePool],
        wake: Callable[[], None],
        log: logging.Logger,
        overlap: Overlap | None = None,
        company: Company | None = None,
    ) -> None:
        """`overlap`: runs steps as two halves where that pays; `company`: runners that steps are computed with."""
        self._model, self._pools, self._wake, self._log = model, pools, wake, log
        self.overlap = overlap
        self._hosts: Sequence[HostPages] = []
        self._slots: dict[int, Slot] = {}
        self._company = company or Company()
        self._plans: Inbox[Flight] = self._company.inbox(self._idle)
        self._worker = threading.Thread(target=self._work, name="stepwell-steps", daemon=True)
        self._worker.start()

    def pin(self, hosts: Sequence[HostPages]) -> None:
        self._hosts = hosts

    def launch(self, plan: StepPlan) -> Step:
        flight = Flight(plan)
        self._plans.put(flight)
        return flight

    def close(self) -> bool:
        self._plans.put(None)
        self._worker.join(CLOSE_S)
        return not self._worker.is_alive()

    # --- on the worker thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        with torch.inference_mode():
            while (flight := self._plans.get()) is not None:
                try:
                    flight.result = self._carry_out(flight.plan)
                except Exception as error:
                    if isinstance(error, PeerLost) or not self._company.alone:  # others wait for what did not come
                        self._plans.lost = self._plans.lost or error
                    flight.result = StepResult(flight.plan.number, error=f"{type(error).__name__}: {error}")
                flight.end = self._plans.lost
                self._wake()

    def _idle(self, size: Size) -> None:
        """Take part in a step of other groups."""
        assert self._model.experts is not None
        self._model.experts.idle(Told(size.prefill, size.most))

    def _carry_out(self, plan: StepPlan) -> StepResult:
        for slot in plan.closes:
            self._slots.pop(slot, None)
        for opened in plan.opens:
            self._slots[opened.slot] = Slot(opened, len(self._model.groups))
        for edit in plan.tables:
            self._slots[edit.slot].edit(edit)
        copies = {copy.id: self._save(copy) for copy in plan.saves}
        if not plan.rows:
            loads = _Loads(self, plan.loads)
            for layer in range(self._model.layers):
                loads.before_layer(layer)
            return StepResult(plan.number, copies=copies | loads.results())
        return self._compute(plan, copies)

    def _compute(self, plan: StepPlan, copies: dict[int, tuple[bool, ...]]) -> StepResult:
        rows, slots = plan.rows, [self._slots[row.slot] for row in plan.rows]
        loads, size = _Loads(self, plan.loads), self._company.before(Size.of(plan.rows))
        prepare = partial(self._prepare, ready=loads.before_layer)
        if self.overlap is None:
            logits = prepare(rows)(Told(size.prefill, size.most))
        else:
            logits = torch.cat(self.overlap.forwards(rows, size, prepare))
        answers, logprobs = self._sample(logits, [i for i, row in enumerate(rows) if row.sample], slots)
        return StepResult(plan.number, 1, answers, logprobs, copies | loads.results())

    def _prepare(self, rows: Sequence[Row], ready: Callable[[int], None]) -> Callable[[Told], torch.Tensor]:
        """What computes the logits of the rows that sample, in order."""
        device, slots = self._model.device, [self._slots[row.slot] for row in rows]
        tokens = np.concatenate([_tokens(row, slot) for row, slot in zip(rows, slots, strict=True)])
        positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in rows])
        places = torch.from_numpy(positions).to(device)
        ends = np.cumsum([row.count for row in rows]) - 1
        return partial(
            self._model.forward,
            torch.from_numpy(tokens.astype(np.int64)).to(device),
            places,
            PlainPaging(self._group_steps(rows, slots), self._model.seats, places, ready),
            torch.from_numpy(ends[[i for i, row in enumerate(rows) if row.sample]]).to(device),
        )

    def _group_steps(self, rows: Sequence[Row], slots: Sequence[Slot]) -> list[GroupStep]:
        found = []
        for number, (group, pool) in enumerate(zip(self._model.groups, self._pools, strict=True)):
            ragged = [
                RaggedRow(row.start, row.count, slot.table(number)) for row, slot in zip(rows, slots, strict=True)
            ]
            batch = lay_out(ragged, group.need, pool.shape.page_size, self._model.device)
            found.append(GroupStep(pool, batch, group.need))
        return found

    def _sample(
        self, logits: torch.Tensor, sampling: Sequence[int], slots: Sequence[Slot]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprob, ...], ...] | None]:
        answers: list[tuple[int, ...]] = [()] * len(slots)
        found: list[tuple[TokenLogprob, ...]] = [()] * len(slots)
        if sampling:
            tokens, logprobs = sample(logits, [slots[i].draw() for i in sampling])
            for i, token, logprob in zip(sampling, tokens, logprobs, strict=True):
                slots[i].sampled(token)
                answers[i] = (token,)
                found[i] = () if logprob is None else (logprob,)
        return tuple(answers), tuple(found) if any(found) else None

    def _save(self, copy: PageCopy) -> tuple[bool, ...]:
        """Copy device pages to host; a fault costs these pages, not the step."""
        return (self._copied(copy, save),) * len(copy.device)

    def _load(self, copy: PageCopy, index: int) -> bool:
        """Copy a group's layer from host to device; a fault costs these pages, and the requests that wait for them."""
        return self._copied(copy, lambda pool, host, *ids: load_layer(pool, host, index, *ids))

    def _copied(self, copy: PageCopy, move: Callable[[PagePool, HostPages, torch.Tensor, torch.Tensor], None]) -> bool:
        try:
            if not self._hosts:
                raise RuntimeError("there is no host tier")
            move(self._pools[copy.group], self._hosts[copy.group], self._on_device(copy), _ids(copy.host))
        except (RuntimeError, IndexError) as error:
            self._log.warning("a copy of %d pages failed: %s", len(copy.device), error)
            return False
        return True

    def _on_device(self, copy: PageCopy) -> torch.Tensor:
        return _ids(copy.device).to(self._model.device)


class _Loads:
    """The loads of one step: each layer's copies run just before the layer reads its pages."""

    def __init__(self, executor: PlainExecutor, copies: Sequence[PageCopy]) -> None:
        self._executor = executor
        self._copies = copies
        self._seats = executor._model.seats
        self._good = dict.fromkeys((copy.id for copy in copies), True)
        self._done: set[int] = set()

    def before_layer(self, layer: int) -> None:
        if layer in self._done:  # two halves ask in turn
            return
        self._done.add(layer)
        seat = self._seats[layer]
        for copy in self._copies:
            if copy.group == seat.group:
                self._good[copy.id] = self._good[copy.id] and self._executor._load(copy, seat.index)

    def results(self) -> dict[int, tuple[bool, ...]]:
        """Which pages came, by copy."""
        return {copy.id: (self._good[copy.id],) * len(copy.device) for copy in self._copies}


def _tokens(row: Row, slot: Slot) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    if row.tokens is None:
        return np.array([slot.last], dtype=np.int32)
    return np.frombuffer(row.tokens, dtype=np.int32)


def _ids(ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))
