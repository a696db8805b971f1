"""Digests of the pages of nodes, worked out where somebody asks for them."""

from __future__ import annotations

from stepwell.cache.keys import page_digests
from stepwell.cache.node import Node
from stepwell.types import DIGEST_BYTES, TOKEN_BYTES


def digests(node: Node, page: int) -> bytes:
    """The digests of a node's pages of `page` tokens."""
    missing = []
    above: Node | None = node
    while above is not None and len(above.digests) < above.pages * DIGEST_BYTES:
        missing.append(above)
        above = above.parent
    for late in reversed(missing):
        assert late.parent is not None
        known = late.digests
        seed = known[-DIGEST_BYTES:] or late.parent.digests[-DIGEST_BYTES:]
        rest = late.edge[len(known) // DIGEST_BYTES * page * TOKEN_BYTES :]
        late.digests = known + page_digests(seed, rest, page)
    return node.digests


def digest_before(node: Node, at: int, page: int) -> bytes:
    """The digest of what page `at` of a node continues; of the first page of a prompt, the namespace."""
    if at:
        return digests(node, page)[DIGEST_BYTES * (at - 1) : DIGEST_BYTES * at]
    assert node.parent is not None
    return digests(node.parent, page)[-DIGEST_BYTES:]
