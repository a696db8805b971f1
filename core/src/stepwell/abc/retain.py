"""Which lengths of a request stay restorable for groups that do not keep the whole history."""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class RetentionPolicy(ABC):
    """Chooses the lengths of a published path at which the windows of sliding groups are kept.

    Pure: no clock, no I/O; equal questions get equal answers. Called on the serving thread. All lengths count tokens
    from the start of the prompt. A length that a policy keeps stays restorable until eviction takes one of its pages:
    first go pages that no kept length needs, then windows in the order of the eviction policy.
    """

    @abstractmethod
    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        """Lengths (page multiples, at most `length`) whose windows stay, for a request that finished at `length`.

        `page` is the page size in tokens; `branches` are the lengths on the path at which another path leaves it,
        ascending. Windows that are no longer there are left out by core.
        """

    def along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        """Lengths (page multiples above `start`, at most `end`) whose windows stay, while a request is still running.

        Asked each time that it has published from `start` to `end`, both page multiples: the windows in between are all
        there now, and the request lets go of them next. `branches`: the lengths in between at which another path leaves
        this one, or this one left another when its request was admitted; ascending. One at the very end of a publish
        may be told with the next, whose `start` is then a page lower.
        Since: API 1.
        """
        return ()

    def prompted(self, length: int, page: int) -> Sequence[int]:
        """Lengths (page multiples, at most `length`) whose windows stay, of a prompt of `length` tokens.

        Asked once a request, when its prompt has been computed and before windows move on with its answer. The same
        prompt again computes its last token again, so what it can use ends below `length`. Since: API 1.
        """
        return ()
