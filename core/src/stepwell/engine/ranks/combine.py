"""Answers of several ranks made one, and who does what only one of them needs to do; nothing here has an effect.

A page counts as copied if it is on every rank that took part. A group that every rank holds whole (`ranks == 1`) is
saved by one rank, copies in turns, and loaded by all, where they share the host's memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepwell.abc.runner import ModelInfo, PageCopy, StepPlan, StepResult
from stepwell.engine.ranks.wire import Made, Nonsense, Result
from stepwell.types import GroupSpec


class Split(Exception):
    """Ranks that did not do the same; their pages do not belong together any more."""


def savers(copy: PageCopy, groups: Sequence[GroupSpec], world: int, *, own: bool = False) -> range:
    """The ranks that carry a save out; all where each has host memory of its `own`, which none else can load from."""
    if own or groups[copy.group].ranks > 1:
        return range(world)
    return range(copy.id % world, copy.id % world + 1)


def share(plan: StepPlan, groups: Sequence[GroupSpec], rank: int, world: int, *, own: bool = False) -> StepPlan:
    """What one rank has to do of a plan."""
    if own or not plan.saves or all(group.ranks > 1 for group in groups):
        return plan
    return replace(plan, saves=tuple(save for save in plan.saves if rank in savers(save, groups, world)))


def seeded(plan: StepPlan) -> StepPlan:
    """The plan with a seed for every request that is to be drawn and has none, since ranks must draw alike."""
    if not any(_unseeded(opened.sampling.temperature, opened.sampling.seed) for opened in plan.opens):
        return plan
    opens = tuple(
        replace(opened, sampling=replace(opened.sampling, seed=secrets.randbits(31)))
        if _unseeded(opened.sampling.temperature, opened.sampling.seed)
        else opened
        for opened in plan.opens
    )
    return replace(plan, opens=opens)


def _unseeded(temperature: float, seed: int | None) -> bool:
    return temperature > 0 and seed is None


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer to a plan has to look like."""

    number: int
    horizon: int
    samples: tuple[bool, ...]
    """For each row."""
    loads: Mapping[int, int]
    """Pages of each load by id."""
    saves: Mapping[int, tuple[int, range]]
    """Pages of each save by id, and the ranks that carry it out."""

    @classmethod
    def of(cls, plan: StepPlan, groups: Sequence[GroupSpec], world: int, *, own: bool = False) -> Expected:
        """What answers to this plan look like."""
        return cls(
            plan.number,
            plan.horizon,
            tuple([row.sample for row in plan.rows]),
            {load.id: len(load.device) for load in plan.loads},
            {save.id: (len(save.device), savers(save, groups, world, own=own)) for save in plan.saves},
        )

    def check(self, answer: Result, rank: int) -> None:
        """Raises Nonsense for what no rank can answer to the plan."""
        if answer.number != self.number:
            raise Nonsense(f"it answered step {answer.number} where step {self.number} was next")
        if answer.error is not None:
            return
        if not 1 <= answer.steps <= self.horizon:
            raise Nonsense(f"{answer.steps} steps of at most {self.horizon}")
        if len(answer.tokens) != len(self.samples):
            raise Nonsense(f"tokens of {len(answer.tokens)} rows of {len(self.samples)}")
        for tokens, sampled in zip(answer.tokens, self.samples, strict=True):
            if len(tokens) != (answer.steps if sampled else 0):
                raise Nonsense(f"{len(tokens)} tokens of a row in {answer.steps} steps")
        for id, pages in answer.copies.items():
            size = self.loads.get(id)
            if size is None:
                size, who = self.saves.get(id, (-1, range(0)))
                size = size if rank in who else -1
            if len(pages) != size:
                raise Nonsense(f"{len(pages)} pages of copy {id}" if size >= 0 else f"a copy {id} that it was not told")


def combined(expected: Expected, answers: Sequence[Result], *, late_saves: bool, doubtful: bool = False) -> StepResult:
    """The one answer of all ranks, in rank order. Raises Split where they did not do the same.

    `doubtful`: a load before this step failed, so that rows may have read what each rank had there; so it is where one
    of its own loads fails. Nobody believes those rows, and ranks may well differ in them.
    """
    number, first = expected.number, answers[0]
    errors = [(rank, answer.error) for rank, answer in enumerate(answers) if answer.error is not None]
    if len(errors) == len(answers):
        return StepResult(number, error=errors[0][1])
    if errors:
        rank, text = errors[0]
        raise Split(f"rank {rank} failed in step {number} where others did not: {text}")
    copies = {id: pages for id in expected.loads if (pages := conjunction([a.copies.get(id) for a in answers]))}
    doubtful = doubtful or lacking(expected, copies)
    for rank, answer in enumerate(answers):
        if answer.steps != first.steps:
            raise Split(f"rank {rank} did {answer.steps} steps and rank 0 did {first.steps} of plan {number}")
        if answer.tokens != first.tokens and not doubtful:
            raise Split(f"rank {rank} sampled other tokens than rank 0 in step {number}")
    if not late_saves:
        for id, (_, who) in expected.saves.items():
            if pages := conjunction([answers[rank].copies.get(id) for rank in who]):
                copies[id] = pages
    return StepResult(number, first.steps, first.tokens, first.logprobs, copies)


def lacking(expected: Expected, copies: Mapping[int, tuple[bool, ...]]) -> bool:
    """Whether a page was not loaded on all ranks."""
    return any(not (pages := copies.get(id)) or not all(pages) for id in expected.loads)


def conjunction(answers: Sequence[bytes | None]) -> tuple[bool, ...]:
    """Which pages are there on all ranks; none where a rank does not list the copy, which failed there."""
    if None in answers:
        return ()
    return tuple(map(all, zip(*[pages for pages in answers if pages is not None], strict=True)))


def agreed(made: Sequence[Made]) -> Made:
    """What all ranks together are. Raises Split where they are not ranks of one model."""
    first, world = made[0], len(made)
    for rank, other in enumerate(made):
        if _identity(other.model) != _identity(first.model) or _shapes(other) != _shapes(first):
            raise Split(f"rank {rank} has another model than rank 0: {other.model} and {first.model}")
    for group in first.groups:
        if group.ranks not in (1, world):
            raise Split(f"group {group.name} lies on {group.ranks} of {world} ranks; it has to be on all, or one")
    budgets = [one.budget for one in made if one.budget is not None]
    return Made(
        first.model,
        first.texts,
        min(one.preferred_chunk for one in made),
        min(one.depth for one in made),
        min(one.max_steps for one in made),
        first.late_saves,
        min(budgets, default=None),
    )


def _identity(model: ModelInfo) -> tuple[object, ...]:
    return (model.name, model.fingerprint, model.kv_dtype, model.layout, model.context, model.vocab, tuple(model.eos))


def _shapes(made: Made) -> tuple[object, ...]:
    return (made.texts, made.late_saves)
