"""Which method copies best, and on how many blocks."""

from __future__ import annotations

SMALL_PIECE = 4096
"""Bytes up to which a piece is small."""


def blocks_for(piece_bytes: int) -> int:
    """Blocks of the kernels that fill the link with pieces of this size."""
    return 16 if piece_bytes <= SMALL_PIECE else 4
