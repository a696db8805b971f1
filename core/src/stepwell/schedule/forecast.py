"""How many tokens a request will generate yet, judged by requests that have finished.

Lengths fall into buckets an eighth of themselves wide. Of each bucket it is known how many answers reached it and how
many ended in it by themselves, newer ones counting more; an answer that was cut at its limit tells of the buckets below
only. From that follow the share of answers that are longer than x, S(x), and its integral A(x), so that of an answer
with g tokens, of m at most, (A(m) - A(g)) / S(g) are to come. Where few have reached g, the limit is believed instead.
"""

from __future__ import annotations

import numpy as np

BUCKETS = 232
"""Enough for 2 ** 30 tokens."""
NEWEST = 1 / 256
"""What the newest answer counts of all."""
BELIEF = 1.0
"""So many answers count as much as the belief that an answer gets as long as it may."""
MOST_NEWS = 8
"""Answers that may change little enough not to learn from each at once."""
HEAVY = 1e100


def bucket(length: int) -> int:
    """Where a length belongs."""
    if length < 16:
        return length
    shift = length.bit_length() - 4
    return min(BUCKETS - 1, (shift << 3) + (length >> shift))


def lowest(bucket: int) -> int:
    """The least length of a bucket."""
    return bucket if bucket < 16 else (8 + (bucket & 7)) << ((bucket >> 3) - 1)


EDGES = tuple(float(lowest(at)) for at in range(BUCKETS + 1))
WIDTHS = np.diff(EDGES)


class Forecast:
    """Expected lengths, and the margin: the share of what is expected for which pages are kept.

    Requests end one by one, so not all pages that they will need are needed at once. The margin jumps up when pages ran
    out, and sinks slowly while requests finish.
    """

    FLOOR = 0.1

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self._floor = min(margin, self.FLOOR)
        self._weight = 1.0
        """Of the next answer."""
        self._ended = np.zeros(BUCKETS)
        """Weight of answers that ended by themselves."""
        self._seen = np.zeros(BUCKETS)
        """Weight of all answers, by their lengths."""
        self._finished = self._news = 0
        """Answers so far, and those that nothing was learned from yet."""
        self._reached = [0.0] * BUCKETS
        """Answers that got as far as a bucket, by weight; the newest weighs 1."""
        self._longer = [1.0] * (BUCKETS + 1)
        """S at the buckets' edges."""
        self._area = list(EDGES)
        """A at the buckets' edges."""

    def ran_out(self) -> None:
        """A request had to be retracted because there were no pages."""
        self.margin += (1 - self.margin) / 3

    def finished(self, generated: int, max_new: int) -> None:
        """A request came to its end: by itself, unless it has all tokens that it may have."""
        self.margin += (self._floor - self.margin) / 128
        at = bucket(generated)
        self._seen[at] += self._weight
        if generated < max_new:
            self._ended[at] += self._weight
        self._weight /= 1 - NEWEST
        self._finished += 1
        self._news += 1
        if self._weight > HEAVY:
            self._seen /= self._weight
            self._ended /= self._weight
            self._weight = 1.0

    def expected(self, generated: int, max_new: int) -> float:
        """Tokens that a request will probably generate yet."""
        most = max_new - generated
        if most <= 0:
            return 0.0
        if self._news > min(MOST_NEWS, self._finished // 16):
            self._learn()
        at = bucket(generated)
        reached = self._reached[at]
        if not reached:
            return float(most)
        low = EDGES[at]
        inside = (generated - low) / (EDGES[at + 1] - low)
        alive = self._longer[at] + inside * (self._longer[at + 1] - self._longer[at])
        learned = (self._until(max_new) - self._until(generated)) / alive
        return (reached * min(most, learned) + BELIEF * most) / (reached + BELIEF)

    def _until(self, length: int) -> float:
        at = bucket(length)
        low, area = EDGES[at], self._area[at]
        return area + (length - low) / (EDGES[at + 1] - low) * (self._area[at + 1] - area)

    def _learn(self) -> None:
        self._news = 0
        reached = np.cumsum(self._seen[::-1])[::-1]
        ended = np.divide(self._ended, reached, out=np.zeros(BUCKETS), where=reached > 0)
        longer = np.concatenate([[1.0], np.cumprod(1 - ended)])
        area = np.concatenate([[0.0], np.cumsum((longer[1:] + longer[:-1]) / 2 * WIDTHS)])
        self._reached = (reached / self._weight).tolist()
        self._longer = longer.tolist()
        self._area = area.tolist()
