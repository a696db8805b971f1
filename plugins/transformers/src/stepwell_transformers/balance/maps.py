"""Which replica of an expert a token goes to: a pattern for each expert that tokens run through in turn.

Token number t of a batch takes entry (t + first) % length of its expert's pattern. `even` has each replica once, so
all get equal shares, within one token, of any run of tokens. `local` sends what it can to replicas on the token's own
rank, and fills the others up so that all replicas of an expert still get equal shares over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepwell import ConfigError

Rule = Literal["even", "local"]
WIDTH = 64
"""Entries of a pattern whose shares are uneven."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """A layer's patterns, for tokens of one rank."""

    pattern: Ints
    """[experts, width]: slots; entries behind an expert's length repeat its first."""
    length: Ints
    """[experts]"""

    def slots(self, experts: npt.NDArray[np.integer], first: int = 0) -> Ints:
        """A slot for each of `experts` [tokens, top_k]; -1 stays -1. `first`: the number of the first token."""
        numbers = np.arange(first, first + len(experts))[:, None]
        found = self.pattern[experts, numbers % self.length[experts]]
        return np.where(experts < 0, -1, found)


def check_rule(rule: Rule, all_to_all: bool, where: str) -> None:
    """ConfigError where ranks that compute the same tokens and sum what they get would choose different replicas."""
    if rule == "local" and not all_to_all:
        raise ConfigError(
            f"{where} = 'local': without an all-to-all every rank has to choose the same replica of an expert, or it "
            "is counted several times: use 'even'"
        )


def choices(
    row: npt.NDArray[np.integer], experts: int, ranks: int, rank: int, rule: Rule, tokens: Floats | None = None
) -> Choices:
    """For a layer's slots `row` and the tokens of `rank`; every rank gets the same under `even`.

    `tokens` [ranks]: how many each rank brings, on average; None: equally many.
    """
    replicas = [np.flatnonzero(row == expert) for expert in range(experts)]
    if not all(len(slots) for slots in replicas):
        raise ValueError("an expert stands nowhere")
    if rule == "even":
        return _packed(replicas)
    brought = np.ones(ranks) if tokens is None or not tokens.any() else tokens
    per_rank = len(row) // ranks
    return _packed([_pattern(slots, slots // per_rank, rank, brought) for slots in replicas])


def shares(homes: Ints, rank: int, brought: Floats) -> Floats:
    """Which part of its tokens a rank sends to each replica, so that all replicas get equally many over all ranks.

    Each takes of its own rank's tokens what it can; what ranks have left over goes where there is room, in proportion.
    """
    fair = brought.sum() / len(homes)
    own = np.zeros(len(homes))
    left = brought.copy()
    for nth, home in enumerate(homes.tolist()):
        own[nth] = min(fair, left[home])
        left[home] -= own[nth]
    room = fair - own
    if not brought[rank]:
        return np.full(len(homes), 1 / len(homes))
    sent = np.where(homes == rank, own, 0)
    if room.sum() > 0:
        sent = sent + left[rank] * room / room.sum()
    return sent / sent.sum()


def _pattern(slots: Ints, homes: Ints, rank: int, brought: Floats) -> Ints:
    part = shares(homes, rank, brought)
    used = part > 0
    if np.allclose(part[used], part[used][0]):
        return slots[used]
    return slots[_spread(part, WIDTH)]


def _spread(part: Floats, width: int) -> Ints:
    """Numbers of replicas, as often as their parts say and each as evenly over the pattern as can be."""
    due, found = np.zeros(len(part)), np.empty(width, dtype=np.int64)
    for at in range(width):
        due += part
        found[at] = due.argmax()
        due[found[at]] -= 1
    return found


def _packed(patterns: list[Ints]) -> Choices:
    length = np.array([len(pattern) for pattern in patterns], dtype=np.int64)
    table = np.empty((len(patterns), int(length.max())), dtype=np.int64)
    for expert, pattern in enumerate(patterns):
        table[expert, : len(pattern)] = pattern
        table[expert, len(pattern) :] = pattern[0]
    return Choices(table, length)
