"""Which lengths of a finished request stay restorable for groups that do not keep the whole history."""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class RetentionPolicy(ABC):
    """Chooses the lengths of a published path at which the windows of sliding groups are kept. Pure."""

    @abstractmethod
    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        """Lengths (page multiples, at most `length`) whose windows stay, for a request that finished at `length`.

        `page` is the page size in tokens; `branches` are the lengths on the path at which another path leaves it.
        """
