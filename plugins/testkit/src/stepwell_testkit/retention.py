"""The kit of retention policies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from stepwell import RetentionPolicy
from stepwell_testkit.kit import Kit

PAGES = (1, 16, 64)
LONG = 1 << 20
CHUNK = 16_384


@dataclass(frozen=True)
class Question:
    """One call: `keep` where a request ended at `end`, `along` where it has published up to there from `start`.

    `prompted` where a prompt of `end` tokens was computed.
    """

    start: int | None
    end: int
    page: int
    branches: tuple[int, ...] = ()
    of_prompt: bool = False

    @property
    def above(self) -> int:
        """Lengths that may stay are greater."""
        return -1 if self.start is None else self.start

    def put(self, policy: RetentionPolicy, branches: Sequence[int] | None = None) -> Sequence[int]:
        """Ask it."""
        given = list(self.branches) if branches is None else branches
        if self.of_prompt:
            return policy.prompted(self.end, self.page)
        if self.start is None:
            return policy.keep(self.end, self.page, given)
        return policy.along(self.start, self.end, self.page, given)

    def answered(self, policy: RetentionPolicy) -> list[int]:
        """What stays, each length once."""
        return sorted(set(self.put(policy)))


class RetentionKit(Kit):
    """Tests a `RetentionPolicy`: give the fixture `policy`.

    Nothing has to stay: a policy that keeps no length at all conforms. What does stay has to be on the path.
    """

    required: ClassVar[tuple[str, ...]] = ("policy",)

    def test_it_is_a_retention_policy(self, policy: RetentionPolicy) -> None:
        assert isinstance(policy, RetentionPolicy)

    def test_it_answers_with_lengths(self, policy: RetentionPolicy) -> None:
        for question in _questions():
            answer = question.put(policy)
            assert isinstance(answer, Sequence), f"{question} gave a {type(answer).__name__}, which is no sequence"
            wrong = [at for at in answer if not isinstance(at, int) or isinstance(at, bool)]
            assert not wrong, f"{question} gave {wrong[:3]}, which are no lengths"

    def test_its_lengths_are_whole_pages(self, policy: RetentionPolicy) -> None:
        for question in _questions():
            wrong = [at for at in question.answered(policy) if at % question.page]
            assert not wrong, f"{question} gave {wrong[:3]}"

    def test_at_the_end_its_lengths_are_on_the_path(self, policy: RetentionPolicy) -> None:
        self._within(policy, [question for question in _questions() if question.start is None])

    def test_along_the_way_its_lengths_are_of_the_piece(self, policy: RetentionPolicy) -> None:
        """Above its start, at most its end: what lies before was asked for before."""
        self._within(policy, [question for question in _questions() if question.start is not None])

    def test_of_less_than_a_page_nothing_stays(self, policy: RetentionPolicy) -> None:
        for page in PAGES:
            for length in range(page):
                for of_prompt in (False, True):
                    kept = Question(None, length, page, of_prompt=of_prompt).answered(policy)
                    assert kept in ([], [0]), f"{length} tokens are no page of {page}, and {kept} was kept"

    def test_a_path_without_branches_is_no_error(self, policy: RetentionPolicy) -> None:
        for page in PAGES:
            policy.keep(10 * page, page, [])
            policy.keep(10 * page, page, ())
            policy.along(0, 10 * page, page, [])
            policy.along(9 * page, 10 * page, page, ())

    def test_it_is_pure(self, policy: RetentionPolicy) -> None:
        questions = list(_questions())
        answers = {question: question.answered(policy) for question in questions}
        for seed in range(3):
            random.Random(seed).shuffle(questions)
            for question in questions:
                assert question.answered(policy) == answers[question], f"{question} is answered differently later"

    def test_it_leaves_branches_as_they_were(self, policy: RetentionPolicy) -> None:
        for question in _questions():
            given = list(question.branches)
            question.put(policy, given)
            assert given == list(question.branches), f"{question} came back with other branches"

    def test_no_more_stay_than_there_are(self, policy: RetentionPolicy) -> None:
        """A length may be said twice, such as a branch at the end; core looks at each that is said."""
        for question in _questions():
            there = (question.end - max(question.above, 0)) // question.page + len(question.branches) + 2
            said = len(question.put(policy))
            assert said <= there, f"{question} gave {said} lengths of {there} that there could be"

    def test_a_piece_costs_the_same_far_down_a_path(self, policy: RetentionPolicy) -> None:
        """CPU time of a chunk that ends at a million tokens against that of the second one."""
        near = Question(CHUNK, 2 * CHUNK, 16)
        far = Question(LONG - CHUNK, LONG, 16)
        _at_most(8, "a chunk 64 times as far down a path", lambda: _cost(policy, far) / _cost(policy, near))

    @pytest.mark.parametrize("start", [None, 0], ids=["at the end", "along the way"])
    def test_a_path_costs_no_more_than_its_length(self, policy: RetentionPolicy, start: int | None) -> None:
        """CPU time of a million tokens with a branch every 512, against a sixteenth of both."""
        short, long = (Question(start, end, 16, tuple(range(512, end + 1, 512))) for end in (LONG // 16, LONG))
        _at_most(64, "16 times the path", lambda: _cost(policy, long) / _cost(policy, short))

    def _within(self, policy: RetentionPolicy, questions: Sequence[Question]) -> None:
        for question in questions:
            wrong = [at for at in question.answered(policy) if not question.above < at <= question.end]
            assert not wrong, f"{question} gave {wrong[:3]}"


def _questions() -> Iterator[Question]:
    """Short and long paths, whole ones and pieces, with no branch, one, some, and one at every page."""
    for page in PAGES:
        for pages in (0, 1, 2, 3, 7, 64, 200):
            for length in sorted({pages * page, pages * page + 1, pages * page + page - 1}):
                yield Question(None, length, page, of_prompt=True)
                for branches in _branches(0, pages * page, page):
                    yield Question(None, length, page, branches)
        for first, last in ((0, 1), (0, 64), (1, 2), (5, 12), (63, 64), (64, 200), (4096, 4096 + 1024)):
            for branches in _branches(first * page, last * page, page):
                yield Question(first * page, last * page, page, branches)


def _branches(start: int, end: int, page: int) -> Iterator[tuple[int, ...]]:
    """Ascending page multiples above `start` and up to `end`."""
    every = range(start + page, end + 1, page)
    yield from sorted({(), tuple(every[:1]), tuple(every[-1:]), tuple(every[::3]), tuple(every)})


def _cost(policy: RetentionPolicy, question: Question) -> float:
    """Least CPU seconds of an answer, all of it read; of a slow one there are few turns."""
    branches = list(question.branches)
    took: list[float] = []
    while len(took) < 100 and sum(took) < 0.02:
        start = time.thread_time()
        list(question.put(policy, branches))
        took.append(time.thread_time() - start)
    return min(took)


def _at_most(limit: float, what: str, ratio: Callable[[], float]) -> None:
    """The least of a few ratios is within a limit; others use the machine too."""
    least = float("inf")
    for _ in range(3):
        least = min(least, ratio())
        if least < limit:
            return
    pytest.fail(f"{what} takes {least:.1f} times as long")
