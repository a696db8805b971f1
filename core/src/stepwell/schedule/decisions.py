"""What a schedule policy decides but the order, each answer checked.

A policy that raises, or says what cannot be used, is counted as at fault, and its default is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import index

from stepwell.abc.schedule import SchedulePolicy
from stepwell.said import said
from stepwell.schedule.job import Job
from stepwell.schedule.view import View


class Decisions:
    """`fault(what)` is told of every answer that cannot be used."""

    def __init__(self, policy: SchedulePolicy, view: View, fault: Callable[[str], None]) -> None:
        self._policy = policy
        self._view = view
        self._fault = fault
        self.preempts = type(policy).preempt is not SchedulePolicy.preempt
        """Whether it can name anybody who gives way; else there is no need to ask."""

    def admit(self, job: Job) -> bool:
        """Whether a request may be tried."""
        try:
            answer = self._policy.admit(job, self._view)
        except Exception as error:
            self._fault(f"admit raised {said(error)}")
            return True
        return self._flag("admit", answer, True)

    def look_past(self, job: Job, misfits: int) -> bool:
        """Whether those behind a request that does not fit are tried."""
        default = SchedulePolicy.look_past(self._policy, job, misfits, self._view)
        try:
            answer = self._policy.look_past(job, misfits, self._view)
        except Exception as error:
            self._fault(f"look_past raised {said(error)}")
            return default
        return self._flag("look_past", answer, default)

    def preempt(self, job: Job, running: Sequence[Job]) -> list[Job]:
        """Who would give way to a waiting request, first first."""
        try:
            named = list(islice(self._policy.preempt(job, tuple(running), self._view), len(running) + 1))
        except Exception as error:
            self._fault(f"preempt raised {said(error)}")
            return []
        known = {id(one): one for one in running}
        victims = [victim for one in named if (victim := known.pop(id(one), None)) is not None]
        if len(victims) < len(named):
            self._fault("preempt names somebody twice, or who does not run")
            return []
        return victims

    def victim(self, running: Sequence[Job]) -> Job:
        """Who is retracted when pages run out; `running` is not empty."""
        known = {id(job): job for job in running}
        try:
            named = known.get(id(self._policy.victim(running, self._view)))
            if named is not None:
                return named
            self._fault("victim is not a running request")
        except Exception as error:
            self._fault(f"victim raised {said(error)}")
        return known[id(SchedulePolicy.victim(self._policy, running, self._view))]

    def chunks(self, prompts: Sequence[Job], budget: int) -> Sequence[int]:
        """Tokens that each prompt under way gets: none below 0, but perhaps more than there are."""
        try:
            answer = self._policy.chunks(tuple(prompts), budget, self._view)
            shares = [index(share) for share in islice(answer, len(prompts) + 1)]
        except Exception as error:
            self._fault(f"chunks raised {said(error)}")
        else:
            if len(shares) == len(prompts) and min(shares, default=0) >= 0:
                return shares
            self._fault(f"chunks is not a number of tokens for each of {len(prompts)} prompts")
        return SchedulePolicy.chunks(self._policy, prompts, budget, self._view)

    def _flag(self, name: str, answer: object, default: bool) -> bool:
        if isinstance(answer, bool):
            return answer
        self._fault(f"{name} is {said(answer)}, which is neither True nor False")
        return default
