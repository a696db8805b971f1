"""Steps on a CUDA device. One thread enqueues them and waits for nothing; others read what they left, in order.

So step n + 1 is enqueued while step n runs. A row's token comes from device memory, where the step before put it; what
a step needs from the host goes up in a few small copies, in the order of the stream. Loads run beside, and layer i
waits for copy i alone; saves run behind, and only what they are reported to waits for them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from stepwell import PeerLost, Step, StepPlan, StepResult, TokenLogprob
from stepwell_kernels import HostPages
from stepwell_kernels.transfer.mover import Mover
from stepwell_transformers.cuda.compute import Compute, Computed
from stepwell_transformers.cuda.graphs import StepGraphs
from stepwell_transformers.cuda.lander import Lander
from stepwell_transformers.cuda.lanes import Lanes
from stepwell_transformers.cuda.lineup import Lineup, line_up
from stepwell_transformers.cuda.transfers import Copying, Transfers
from stepwell_transformers.drawing import Drawer, Drawn
from stepwell_transformers.drawing.upload import upload
from stepwell_transformers.executor import Executor, Flight
from stepwell_transformers.experts import Told
from stepwell_transformers.together import Company, Inbox
from stepwell_transformers.twobatch import Size
from stepwell_transformers.twobatch.enqueue import InHalves, Joined

CLOSE_S = 30.0
"""How long what runs may take to end when the runner closes."""


class CudaExecutor(Executor):
    """Owns the lanes, and the threads that enqueue and land."""

    def __init__(
        self,
        compute: Compute,
        graphs: StepGraphs | None,
        drawer: Drawer,
        lanes: Lanes,
        movers: Callable[[Sequence[HostPages]], Sequence[Mover]],
        wake: Callable[[], None],
        log: logging.Logger,
        halves: InHalves | None = None,
        company: Company | None = None,
    ) -> None:
        """`halves`: runs steps as two where that pays; `company`: other runners that steps are computed with."""
        self._halves = halves
        self.overlap = None if halves is None else halves.overlap
        self._compute, self._graphs, self._lanes, self._movers = compute, graphs, lanes, movers
        self._drawer, self._wake = drawer, wake
        self._transfers = Transfers(compute.model.seats, lanes, log)
        self._saved: deque[dict[int, tuple[bool, ...]]] = deque()
        self._company = company or Company()
        self._plans: Inbox[CudaFlight] = self._company.inbox(self._idle)
        self._steps, self._saves = Lander("stepwell-results", wake), Lander("stepwell-saves", wake)
        self._worker = threading.Thread(target=self._work, name="stepwell-steps", daemon=True)
        self._worker.start()

    def pin(self, hosts: Sequence[HostPages]) -> None:
        self._transfers.pin(self._movers(hosts))

    def launch(self, plan: StepPlan) -> Step:
        flight = CudaFlight(plan)
        self._plans.put(flight)
        return flight

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        ended: dict[int, tuple[bool, ...]] = {}
        while self._saved:
            ended |= self._saved.popleft()
        return ended

    def close(self) -> bool:
        self._plans.put(None)
        self._worker.join(CLOSE_S)
        return not self._worker.is_alive() and self._steps.close(CLOSE_S) and self._saves.close(CLOSE_S)

    # --- on the worker thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        with torch.inference_mode():
            while (flight := self._plans.get()) is not None:
                try:
                    if self._plans.lost is not None:
                        raise self._plans.lost
                    self._carry_out(flight)
                except Exception as fault:  # nothing can be enqueued any more
                    flight.fail(fault)
                    self._wake()

    def _carry_out(self, flight: CudaFlight) -> None:
        plan, compute = flight.plan, self._lanes.compute
        self._save(plan)
        loading = self._transfers.load(plan.loads)
        with compute.enqueue():
            try:
                flight.answers = self._enqueue(plan, loading)
            except Exception as fault:
                if isinstance(fault, PeerLost) or not self._company.alone:  # others wait for what did not come
                    raise
                flight.fault = _of_step(plan, fault)
            loading.hold_all(compute)
            mark = compute.mark()
        self._steps.put(mark, lambda late: self._land(flight, loading, late))

    def _idle(self, size: Size) -> None:
        """Take part in a step of other groups."""
        experts = self._compute.model.experts
        assert experts is not None
        with self._lanes.compute.enqueue():
            experts.idle(Told(size.prefill, size.most))

    def _save(self, plan: StepPlan) -> None:
        if not plan.saves:
            return
        saving, mark = self._transfers.save(plan.saves, self._lanes.compute.mark())

        def land(error: RuntimeError | None) -> None:
            if error is not None:
                self._transfers.failed(saving, error)
            self._saved.append(saving.results(ended=error is None))

        self._saves.put(mark, land)

    def _enqueue(self, plan: StepPlan, loading: Copying) -> _Answers | None:
        for slot in plan.closes:
            self._drawer.close(slot)
        for opened in plan.opens:
            self._drawer.open(opened.slot, opened.sampling, opened.prompt, opened.generated)
        state = self._compute.state
        state.write(state.edit(plan))
        if not plan.rows:
            return None
        lineup = line_up(plan.rows)
        state.check(lineup.triples)
        return _Answers(lineup, self._step(lineup, self._company.before(Size.of(plan.rows)), loading))

    def _step(self, lineup: Lineup, size: Size, loading: Copying) -> Drawn | None:
        """The next token of each row that samples; also left where the row's next step finds it."""
        whole = partial(self._whole, lineup, size, loading)
        if self._halves is None:
            computed: Computed | Joined = whole()
        else:
            computed = self._halves.run(lineup, size, loading, self._lanes.compute, whole)
        own = [lineup.rows[at] for at in lineup.sampling]
        if not own:
            return None
        places, slots = [computed.place(at, lineup.decodes) for at in lineup.sampling], [row.slot for row in own]
        at: slice | torch.Tensor = slice(len(own))
        if places[-1] != len(own) - 1:
            (at,) = upload(computed.logits.device, np.array(places))
        if computed.tokens is not None and self._drawer.plain(slots):
            return Drawn(computed.tokens[at])
        drawn = self._drawer.draw(computed.logits[at], slots, [row.start + row.count for row in own])
        self._compute.state.last[computed.slots[at]] = drawn.tokens.int()
        return drawn

    def _whole(self, lineup: Lineup, size: Size, loading: Copying) -> Computed | Joined:
        """A step as one batch."""
        if self._graphs and (self._company.alone or self._alike(size)):
            computed = self._graphs.replay(lineup, loads=bool(loading.marks))
            if computed is not None:
                return computed
        prepared = self._compute.prepare(lineup, lambda layer: loading.hold(self._lanes.compute, layer))
        return prepared(Told(size.prefill, size.most))

    def _alike(self, size: Size) -> bool:
        """Whether what a graph exchanges is what groups without one do in this step."""
        experts = self._compute.model.experts
        return experts is not None and not size.prefill and experts.captures(size.most)

    # --- on the thread that lands ------------------------------------------------------------------------------

    def _land(self, flight: CudaFlight, loading: Copying, late: RuntimeError | None) -> None:
        try:
            if late is not None:
                self._lanes.compute.mark().synchronize()  # raises again where the device takes no more work
            flight.land(loading.results(ended=late is None), late)
        except Exception as fault:
            flight.fail(late or fault)


class CudaFlight(Flight):
    """A step on its way through the lanes."""

    def __init__(self, plan: StepPlan) -> None:
        super().__init__(plan)
        self.answers: _Answers | None = None
        self.fault: Exception | None = None
        """Of the step alone."""

    def land(self, copies: Mapping[int, tuple[bool, ...]], late: RuntimeError | None) -> None:
        """All its work has ended."""
        number, error = self.plan.number, self.fault or late
        if error is not None:
            self.result = StepResult(number, copies=copies, error=f"{type(error).__name__}: {error}")
        else:
            self.result = self.answers.result(number, copies) if self.answers else StepResult(number, copies=copies)

    def fail(self, error: Exception) -> None:
        """Nor will any other step end well."""
        self.end = error


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a step sampled, on its way to the host."""

    lineup: Lineup
    drawn: Drawn | None

    def result(self, number: int, copies: Mapping[int, tuple[bool, ...]]) -> StepResult:
        """By row of the plan, once it is there."""
        tokens: list[tuple[int, ...]] = [()] * len(self.lineup.rows)
        odds: list[tuple[TokenLogprob, ...]] = [()] * len(self.lineup.rows)
        if self.drawn is not None:
            found = zip(self.lineup.sampling, self.drawn.read(), self.drawn.logprobs(), strict=True)
            for at, token, logprob in found:
                tokens[self.lineup.order[at]] = (token,)
                odds[self.lineup.order[at]] = () if logprob is None else (logprob,)
        return StepResult(number, 1, tuple(tokens), tuple(odds) if any(odds) else None, copies)


def _of_step(plan: StepPlan, fault: Exception) -> Exception:
    """What a step failed of, in words that say what to do."""
    if isinstance(fault, torch.OutOfMemoryError):
        return MemoryError(_too_large(plan, fault))
    return fault


def _too_large(plan: StepPlan, fault: torch.OutOfMemoryError) -> str:
    torch.cuda.empty_cache()  # what is in pieces may come back whole
    tokens, said = sum(row.count for row in plan.rows), str(fault).splitlines()[0]
    return f"{tokens} tokens at once need more memory than is left: lower engine.chunk or runner.memory ({said})"
