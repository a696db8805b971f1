"""Keys of SGLang's pages in Stepwell's form: 32 bytes of digest, then 8 that say whose and which part.

SGLang's page hash covers tokens, adapter and salt, and nothing of how a page looks. All of that is the namespace here:
two pools whose pages differ in any of it share no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell import PageKey
from stepwell.cache.keys import namespace
from stepwell.types import TAG_BYTES

FORMAT = "stepwell-sglang-1"
SEAL = "seal"
FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Shard:
    """Which share of a page this process holds, as far as pages of other shares differ."""

    tp: tuple[int, int] | None
    """(rank, size), or None where every tensor-parallel rank holds the same."""
    pp: tuple[int, int]
    cp: tuple[int, int]
    dcp: tuple[int, int]

    def parts(self) -> dict[str, str | None]:
        """For a namespace."""
        return {
            name: None if axis is None else f"{axis[0]}/{axis[1]}"
            for name, axis in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("dcp", self.dcp))
        }


class Names:
    """Names pages of one pool."""

    def __init__(self, parts: Mapping[str, str | None]) -> None:
        self._seed = namespace({"format": FORMAT, **parts})
        self._hash = hashlib.sha256(self._seed)

    def tag(self, part: str) -> bytes:
        """Eight bytes for a part of a page. Differs between namespaces, so that a listing tells whose page it is."""
        return hashlib.sha256(self._seed + b"part:" + part.encode()).digest()[:TAG_BYTES]

    def digests(self, hashes: Sequence[str]) -> list[bytes]:
        """One for each page hash, whatever its form."""
        found = []
        for text in hashes:
            digest = self._hash.copy()
            digest.update(text.encode())
            found.append(digest.digest())
        return found

    @staticmethod
    def keys(digests: Sequence[bytes], tags: Sequence[bytes]) -> list[PageKey]:
        """Keys of all parts of all pages, page by page."""
        if len(tags) == 1:
            (tag,) = tags
            return [digest + tag for digest in digests]
        return [digest + tag for digest in digests for tag in tags]
