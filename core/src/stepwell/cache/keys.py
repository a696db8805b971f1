"""Namespaces and page keys: one chain of digests for tree events, storage and bridges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from stepwell.types import DIGEST_BYTES, TOKEN_BYTES, GroupSpec, PageKey

FORMAT = "stepwell-namespace-1"


def namespace(parts: Mapping[str, str | None]) -> bytes:
    """32 bytes that two different sets of parts never share.

    Each part is tagged and length-framed, and None differs from "". Parts: model, dtype, layout, page_size, adapter,
    salt, extra; one that is not given counts as None. Stable across processes and versions of the interpreter.
    """
    digest = hashlib.sha256(FORMAT.encode())
    for name in sorted(parts):
        value = parts[name]
        if value is None:
            continue
        for text in (name, value):
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.digest()


def page_digests(seed: bytes, tokens: bytes, page_size: int) -> bytes:
    """Digests of the whole pages of `tokens` (int32 bytes), 32 bytes each; `seed`: namespace or digest before."""
    step = page_size * TOKEN_BYTES
    sha256 = hashlib.sha256
    digests = []
    for at in range(0, len(tokens) - step + 1, step):
        seed = sha256(seed + tokens[at : at + step]).digest()
        digests.append(seed)
    return b"".join(digests)


def page_keys(digests: bytes, group: GroupSpec) -> tuple[PageKey, ...]:
    """The keys of a group's pages, one for each digest."""
    tag = group.tag
    return tuple(digests[at : at + DIGEST_BYTES] + tag for at in range(0, len(digests), DIGEST_BYTES))
