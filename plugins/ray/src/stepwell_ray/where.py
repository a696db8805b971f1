"""How a front end reaches a replica."""

from __future__ import annotations

from typing import TypedDict


class Where(TypedDict):
    """What a replica tells those who may call it through Ray; nobody else learns the key."""

    name: str
    address: str
    key: bytes
    pid: int
