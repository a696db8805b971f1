"""Batches for the client: names, addresses and sizes as the lists that it takes, with no object a page of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from stepwell import PageKey
from stepwell_mooncake.client import Client

Numbers = npt.NDArray[np.int64]


def names_of(prefix: str, keys: Sequence[PageKey]) -> list[str]:
    """The names under which pages lie in the store."""
    return [prefix + key.hex() for key in keys]


def get(client: Client, names: list[str], addresses: Numbers, sizes: Numbers) -> list[int]:
    """Fill pages from the store: how many bytes came for each, or a negative code."""
    if len(sizes) == 1:
        return client.batch_get_into(names, addresses[:, 0].tolist(), sizes.tolist() * len(names))
    return client.batch_get_into_multi_buffers(names, addresses.tolist(), list(repeat(sizes.tolist(), len(names))))


def get_each(client: Client, names: list[str], addresses: Numbers, sizes: Numbers) -> list[int]:
    """The same where names may repeat: the client fills one place of those that share a name, and claims all."""
    first = first_places(names)
    if len(first) == len(names):
        return get(client, names, addresses, sizes)
    once = list(first.values())
    came = dict(zip(first, get(client, list(first), addresses[once], sizes), strict=True))
    for at, name in enumerate(names):
        if at != first[name] and came[name] == sizes.sum():
            for to, source, size in zip(addresses[at], addresses[first[name]], sizes, strict=True):
                ctypes.memmove(int(to), int(source), int(size))
    return [came[name] for name in names]


def put(client: Client, names: list[str], addresses: Numbers, sizes: Numbers, how: object) -> list[int]:
    """Put pages into the store: a code for each."""
    if len(sizes) == 1:
        return client.batch_put_from(names, addresses[:, 0].tolist(), sizes.tolist() * len(names), how)
    parts = list(repeat(sizes.tolist(), len(names)))
    return client.batch_put_from_multi_buffers(names, addresses.tolist(), parts, how)


def put_each(client: Client, names: list[str], addresses: Numbers, sizes: Numbers, how: object) -> list[int]:
    """The same where names may repeat: each is put once."""
    first = first_places(names)
    if len(first) == len(names):
        return put(client, names, addresses, sizes, how)
    codes = put(client, list(first), addresses[list(first.values())], sizes, how)
    came = dict(zip(first, codes, strict=True))
    return [came[name] for name in names]


def first_places(names: Sequence[str]) -> dict[str, int]:
    """Where each name comes first."""
    return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))
