"""What a rank does about the places of experts between two steps: it votes, and puts into place what all have.

Every rank goes through the same states in the same steps, since what it does next depends on votes alone:

resting --every so many steps--> looking --all have one plan--> carrying --all have a batch--> carrying ... resting
                                    |                              |
                                    +---- one failed, or too late -+--> resting, with what was put into place so far
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from stepwell import Placement
from stepwell_kernels.collective import Group
from stepwell_transformers.balance import Cycle, LayerMoves, Verdict
from stepwell_transformers.rebalance.aside import Aside
from stepwell_transformers.rebalance.planner import GIVEN_UP, Planned, Planner
from stepwell_transformers.rebalance.stages import Beside, Stages, at_once

if TYPE_CHECKING:
    from stepwell_transformers.experts.experts import Experts
    from stepwell_transformers.experts.settings import ExpertsSettings

CLOSE_S = 5.0
COUNTED = ("plans", "version", "moves", "layers_moved", "bytes_moved", "dropped", "pause_s", "pause_s_worst", "moving")
"""`version` counts changes of the map that tokens go by; a pause is time between steps without that of waiting for
other ranks, which the steps themselves would wait for."""


class Rebalancing:
    """Of one rank. `between` on the thread that computes, in the same steps on every rank; `values` on any."""

    def __init__(
        self,
        experts: Experts,
        planner: Planner,
        settings: ExpertsSettings,
        votes: Group,
        carrier: Group,
        log: logging.Logger,
        *,
        sums: bool = False,
        beside: Beside = at_once,
    ) -> None:
        """`votes` and `carrier`: all ranks that have some of the experts, on the host, one for each of the two threads.

        `sums`: ranks count different tokens, so that counts have to be added up.
        """
        self._experts, self._planner, self._settings = experts, planner, settings
        self._votes, self._carrier, self._log = votes, carrier, log
        self._sums, self._beside = sums, beside
        self._steps = self._number = self._passes = 0
        self._waited = 0.0
        self._broken = self._over = False
        """Whether weights could not be carried here, and whether that was so on some rank."""
        self._aside: Aside[Planned | Sequence[Stages]] = Aside("stepwell-balance")
        self._cycle: Cycle | None = None
        self._plan: Planned | None = None
        self._last: Planned | None = None
        """What all ranks did about a plan that was due, for the next look."""
        self._batches: list[Sequence[LayerMoves]] = []
        self._batch: Sequence[LayerMoves] = ()
        self._stages: Sequence[Stages] = ()
        self._counted = dict.fromkeys(COUNTED, 0.0)
        experts.drain_counts()  # what was tried out

    def values(self) -> Mapping[str, float]:
        """Numbers for operators."""
        return {f"experts_{name}": value for name, value in list(self._counted.items())}

    def between(self) -> None:
        """A step is about to begin."""
        begun, self._waited = time.perf_counter(), 0.0
        self._steps += 1
        self._passes += 1
        if self._cycle is None:
            if self._steps % self._settings.look_every == 0:
                self._look()
        else:
            self._cycle.tick()
            if self._steps % self._settings.vote_every == 0:
                self._vote(self._cycle)
        spent = time.perf_counter() - begun - self._waited
        self._counted["pause_s"] += spent
        self._counted["pause_s_worst"] = max(self._counted["pause_s_worst"], spent)

    def close(self) -> None:
        """Plan and carry nothing more."""
        self._carrier.close()
        self._aside.close(CLOSE_S)
        self._votes.close()

    # --- states --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Plan beside the steps, unless some rank still works on what was dropped."""
        if self._over:
            return
        self._hear(None)
        free, whole = self._least(int(not self._aside.busy), int(not self._broken))
        if not whole:
            self._over = True
            self._log.error("experts keep their places from here on, since weights cannot be carried between ranks")
        if not free or not whole:
            return
        counts, passes, current = self._experts.drain_counts(), self._passes, Placement(self._experts.placement)
        last, self._last, self._passes = self._last, None, 0
        self._begin()
        self._aside.begin(lambda: self._planner.look(self._summed(counts), passes, current, last))

    def _begin(self) -> None:
        self._cycle = Cycle(self._number, self._settings.deadline)
        self._number += 1

    def _vote(self, cycle: Cycle) -> None:
        self._hear(cycle)
        verdict = Cycle.verdict(self._least(*cycle.vote()))
        if verdict is Verdict.DROP:
            self._drop()
        elif verdict is Verdict.GO:
            self._go_on()

    def _hear(self, cycle: Cycle | None) -> None:
        """What the other thread has come to; without a cycle, nobody wants it any more."""
        try:
            found = self._aside.result()
        except Exception as error:
            self._log.warning("experts stay where they are: %s: %s", type(error).__name__, error)
            self._broken = self._broken or bool(self._batch)
            if cycle is not None:
                cycle.failed()
            return
        if found is None or cycle is None:
            return
        if isinstance(found, Planned):
            self._plan = found
        else:
            self._stages = found
        assert self._plan is not None
        cycle.ready(self._plan.digest)

    def _least(self, *numbers: int) -> tuple[int, ...]:
        begun = time.perf_counter()
        found = self._votes.least(*numbers)
        self._waited += time.perf_counter() - begun
        return found

    def _go_on(self) -> None:
        assert self._plan is not None
        if not self._batch:
            self._counted["used"] = self._plan.used
            self._batches = list(self._plan.batches)
            self._last = self._plan if self._plan.reached is not None else None
            if self._batches:
                self._counted["plans"] += 1
                self._say("experts change their places: %s", self._plan.why)
        else:
            self._put()
        self._batch = self._batches.pop(0) if self._batches else ()
        self._counted["moving"] = float(bool(self._batch))
        if not self._batch:
            self._cycle = None
            return
        self._begin()
        batch = self._batch
        self._aside.begin(lambda: self._carried(batch))

    def _put(self) -> None:
        """Weights into their slots, and tokens to them, before the next step."""
        for layer, stages in zip(self._batch, self._stages, strict=True):
            self._counted["bytes_moved"] += stages.put()
            self._experts.place(layer.layer, layer.next)
            self._counted["moves"] += len(layer.copies)
        self._stages = ()
        self._counted["layers_moved"] += len(self._batch)
        self._counted["version"] += 1

    def _drop(self) -> None:
        self._cycle, self._plan, self._batch, self._batches, self._stages = None, None, (), [], ()
        self._last = GIVEN_UP
        self._counted["dropped"] += 1
        self._counted["moving"] = 0.0
        self._say("a change of experts' places was given up: a rank failed, differed or took too long")

    # --- beside the steps ----------------------------------------------------------------------------------------

    def _summed(self, counts: torch.Tensor) -> npt.NDArray[np.int64]:
        """The counts of all ranks, on the host."""
        with self._beside():
            own = counts.cpu()
        found: npt.NDArray[np.int64] = (self._carrier.all_reduce(own) if self._sums else own).numpy()
        return found

    def _carried(self, batch: Sequence[LayerMoves]) -> Sequence[Stages]:
        found = []
        for layer in batch:
            stages = Stages(layer, self._votes.rank, self._experts.weights_of)
            stages.fill(self._carrier, self._beside)
            found.append(stages)
        return found

    def _say(self, text: str, *more: object) -> None:
        if self._votes.rank == 0:
            self._log.info(text, *more)
