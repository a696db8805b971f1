"""L3: a service or a folder that keeps pages beyond the host's memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from stepwell.types import ArenaView, PageKey, PageResult, PageViews, StoredPage


class Storage(ABC):
    """Keeps pages by key.

    Calls come from I/O threads, several at once. Each call is a batch; its answer has exactly one entry a key, in
    order. Keys of one batch may repeat. An exception out of a call counts as a failure of every page of the batch.
    Nothing is called after `close`. Core adds deadlines, retries, checksums and a circuit breaker: do not.
    """

    def attach(self, arena: ArenaView) -> None:  # noqa: B027 - most backends need no registration
        """Register the arena for zero copy. Called once, before any other call."""

    @abstractmethod
    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        """Say for each key whether a read would probably find it now. May err; `read` decides."""

    @abstractmethod
    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        """Fill `into[i]` with the bytes stored under `keys[i]`.

        DONE only if the whole view was filled with bytes of one complete write. After MISSING or Failed the view's
        bytes are undefined. The views belong to the call until it returns.
        """

    @abstractmethod
    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        """Store `pages[i]` under `keys[i]`.

        DONE means a later `read` finds the whole page, or that the key was there already (either value may stay:
        equal keys mean equal bytes). A page that failed is never visible. The views may be reused after the return.
        """

    @abstractmethod
    def delete(self, keys: Sequence[PageKey]) -> None:
        """Forget these keys; one that is not there is no error.

        Of an offer that declares DELETES a later read finds none of them, whoever used them last. Of any other this is
        a wish: the store may keep them until it drops them by itself.
        """

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        """Every page that the store holds of Stepwell's, in batches of any size and in no order.

        For administration: `stepwell storage ls`, `du`, `verify`, `clear`. Runs beside all other calls. A page that
        comes or goes meanwhile may or may not be among them; a key comes once. What others keep in the same place is
        left out. Offers that declare LISTS have it; the others raise NotImplementedError.
        """
        raise NotImplementedError("this storage cannot list its pages")

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Release everything; the last call."""
