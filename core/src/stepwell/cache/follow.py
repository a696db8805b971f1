"""What the tree tells of itself to whoever keeps answers about it."""

from __future__ import annotations

from stepwell.cache.node import Node, Places


class Follower:
    """Told of what may change an answer, at once and in the midst of it: a follower takes note and asks nothing.

    This one does nothing, which is what an index has until `follow` gives it another.
    """

    def grew(self, node: Node, edge: bytes) -> None:
        """Behind the end of a node (as it says it still, where the node itself grows) tokens go on with `edge`."""

    def split(self, upper: Node, node: Node) -> None:
        """`node` keeps the tail of what it was, `upper` has the rest."""

    def shrank(self, node: Node) -> None:
        """A node ends earlier than it did."""

    def gone(self, node: Node) -> None:
        """A node leaves the tree; so do those below it, each told of after the one above it."""

    def came(self, node: Node) -> None:
        """Pages of a window group came to a node."""

    def went(self, node: Node, places: Places) -> None:
        """Pages of a window group, ascending, left a node in a tier."""
