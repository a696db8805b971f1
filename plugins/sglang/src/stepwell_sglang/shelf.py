"""The pages of one host pool in a storage: part by part, each page good only if all of it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from stepwell import DONE, MISSING, Done, Failed, PageKey, PageResult, Storage
from stepwell_sglang import seals
from stepwell_sglang.calls import Calls, Job, Ticket
from stepwell_sglang.memory import Addresses, Region, Slots, copy
from stepwell_sglang.names import SEAL, Names
from stepwell_sglang.pools import Pages, Pool

CHUNK_BYTES = 4 << 20
"""Pages of one call at least: enough to be worth a thread."""
LATE = Failed("the caller has gone")


@dataclass(frozen=True, slots=True)
class Wing:
    """Parts of a page that one call of a storage can move: of one size, in one region."""

    parts: tuple[int, ...]
    tags: tuple[bytes, ...]
    nbytes: int
    region: Region
    storage: Storage
    bounce: Slots | None
    """Where pages are copied through; None where the storage moves SGLang's memory itself."""


class Shelf:
    """Reads and writes pages of a pool."""

    def __init__(
        self,
        pool: Pool,
        names: Names,
        wings: Sequence[Wing],
        calls: Calls,
        sealing: Storage,
        slots: Slots | None,
        cuts: int,
    ) -> None:
        """`slots`: where seals are on their way to and from `sealing`; None: none are kept. `cuts`: calls a batch."""
        self.pool, self._names, self._wings, self._calls, self._cuts = pool, names, tuple(wings), calls, cuts
        self._sealing, self._slots = sealing, slots
        self._seal = names.tag(SEAL)
        self._tags = [names.tag(str(part)) for part in range(len(pool.parts))]
        self.tags = frozenset({self._seal, *self._tags})
        copied = all(wing.bounce for wing in wings)
        self._leave_reads, self._leave_writes = copied, copied or slots is not None

    # --- asked by SGLang's threads -------------------------------------------------------------------------------

    def present(self, hashes: Sequence[str]) -> list[bool]:
        """Whether a read would probably find each page."""
        digests = self._names.digests(hashes)

        def ask(ticket: Ticket) -> list[PageResult]:
            return [DONE if held else MISSING for held in self._held(digests)]

        self._calls.guard.add(queries=1)
        (results,) = self._calls.run([(ask, len(digests))], reading=True, leave=True)
        return _done(results)

    def read(self, hashes: Sequence[str], pages: Pages) -> list[bool]:
        """Fill these pages of the pool; whether each was filled with what was stored."""
        digests = self._names.digests(hashes)

        def job(part: slice) -> Job:
            count = len(digests[part])
            return lambda ticket: self._read(ticket, digests[part], pages[part]), count

        jobs = [job(part) for part in self._chunks(len(digests))]
        results = [one for some in self._calls.run(jobs, reading=True, leave=self._leave_reads) for one in some]
        good = _done(results)
        self._count(good, "read")
        self._calls.guard.add(reads=1, missing=results.count(MISSING))
        return good

    def write(self, hashes: Sequence[str], pages: Pages) -> list[bool]:
        """Store these pages of the pool; whether each is there now. What failed is tried again, within bounds."""
        digests = self._names.digests(hashes)
        good = self._write_once(digests, pages)
        attempt = 0
        while not all(good) and self._calls.pause(attempt):
            failed = [at for at, one in enumerate(good) if not one]
            self._calls.guard.add(retries=len(failed))
            again = self._write_once([digests[at] for at in failed], pages[failed])
            for at, one in zip(failed, again, strict=True):
                good[at] = one
            attempt += 1
        self._count(good, "written")
        return good

    # --- on the lanes: what is there -----------------------------------------------------------------------------

    def _held(self, digests: Sequence[bytes]) -> list[bool]:
        if self._slots is not None:
            return [bool(one) for one in self._sealing.contains(Names.keys(digests, [self._seal]))]
        return [bool(one.all()) for one in self._held_parts(digests)]

    def _held_parts(self, digests: Sequence[bytes]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Of each page, each part."""
        found = [
            np.fromiter(wing.storage.contains(Names.keys(digests, wing.tags)), np.bool_, len(digests) * len(wing.tags))
            for wing in self._wings
        ]
        return np.hstack([one.reshape(len(digests), -1) for one in found])

    # --- on the lanes: reading -----------------------------------------------------------------------------------

    def _read(self, ticket: Ticket, digests: Sequence[bytes], pages: Pages) -> list[PageResult]:
        if self._slots is None:
            return self._move(ticket, digests, pages, reading=True)
        with self._slots.lend(len(digests)) as at:
            views = self._slots.region.views(at, self._slots.nbytes)
            results = list(self._sealing.read(Names.keys(digests, [self._seal]), views))
            found = [n for n, one in enumerate(results) if isinstance(one, Done)]
            if not found:
                return results
            some, where = [digests[n] for n in found], pages[found]
            filled = self._move(ticket, some, where, reading=True)
            slots = views.buffers()
            bad = []
            for n, result, parts, digest in zip(found, filled, self._parts(where), some, strict=True):
                results[n] = result
                if not isinstance(result, Done) or ticket.left:
                    continue
                if slots[n][: seals.SIZE] != seals.seal(parts, digest + self._seal):
                    results[n] = MISSING
                    bad.append(digest)
            if bad and not ticket.left:
                self._calls.guard.count("checksum", len(bad), f"{len(bad)} pages came back other than they were sealed")
                self._forget(bad)
        return results

    def _forget(self, digests: Sequence[bytes]) -> None:
        """Drop what is left of pages, so that they can be stored anew. A wish, where a store does not delete."""
        with suppress(NotImplementedError):
            if self._slots is not None:
                self._sealing.delete(Names.keys(digests, [self._seal]))
            for wing in self._wings:
                wing.storage.delete(Names.keys(digests, wing.tags))

    # --- on the lanes: writing -----------------------------------------------------------------------------------

    def _write_once(self, digests: Sequence[bytes], pages: Pages) -> list[bool]:
        def job(part: slice) -> Job:
            count = len(digests[part])
            return lambda ticket: self._write(ticket, digests[part], pages[part]), count

        self._calls.guard.add(writes=1)
        jobs = [job(part) for part in self._chunks(len(digests))]
        ended = self._calls.run(jobs, reading=False, leave=self._leave_writes)
        return _done([one for some in ended for one in some])

    def _write(self, ticket: Ticket, digests: Sequence[bytes], pages: Pages) -> list[PageResult]:
        if self._slots is None:
            return self._store(ticket, digests, pages)
        results: list[PageResult] = [DONE] * len(digests)
        new = self._new(digests)
        if not new:
            return results
        some, where = [digests[n] for n in new], pages[new]
        texts = [seals.seal(parts, digest + self._seal) for parts, digest in zip(self._parts(where), some, strict=True)]
        if ticket.left:  # what was summed up may not be the pages any more; what is summed up now, was them
            return [LATE] * len(digests)
        stored = self._store(ticket, some, where)
        whole = [n for n, one in enumerate(stored) if isinstance(one, Done)]
        with self._slots.lend(len(whole)) as at:
            views = self._slots.region.views(at, self._slots.nbytes)
            for slot, n in zip(views.buffers(), whole, strict=True):
                seals.put(slot, texts[n])
            keys = Names.keys([some[n] for n in whole], [self._seal])
            for n, result in zip(whole, self._sealing.write(keys, views) if whole else (), strict=True):
                stored[n] = result
        for n, result in zip(new, stored, strict=True):
            results[n] = result
        return results

    def _new(self, digests: Sequence[bytes]) -> list[int]:
        """Which pages have to be written. Of one that is there in part the rest goes first: it may be another's."""
        sealed = np.fromiter(self._held(digests), np.bool_, len(digests))
        parts = self._held_parts(digests)
        new = np.flatnonzero(~(sealed & parts.all(axis=1))).tolist()
        rest = [digests[n] for n in new if sealed[n] or parts[n].any()]
        if rest:
            self._forget(rest)
        return new

    def _store(self, ticket: Ticket, digests: Sequence[bytes], pages: Pages) -> list[PageResult]:
        stored = self._move(ticket, digests, pages, reading=False)
        return [Failed("storage says missing of a write") if one is MISSING else one for one in stored]

    # --- both ----------------------------------------------------------------------------------------------------

    def _move(self, ticket: Ticket, digests: Sequence[bytes], pages: Pages, *, reading: bool) -> list[PageResult]:
        """All parts of pages, to or from the storage of each; the worst that became of any part of a page."""
        worst: list[PageResult] = [DONE] * len(digests)
        for wing in self._wings:
            keys, addresses = self._by_part(wing, digests, pages)
            if wing.bounce is None:
                call = wing.storage.read if reading else wing.storage.write
                results = call(keys, wing.region.views(addresses, wing.nbytes))
            else:
                results = _through(wing.bounce, wing, keys, addresses, ticket, reading=reading)
            _fold(worst, results, len(wing.tags))
        return worst

    def _chunks(self, count: int) -> list[slice]:
        """Cuts a batch into calls."""
        most = max(1, CHUNK_BYTES // max(1, self.pool.page_bytes), -(-count // self._cuts))
        if self._slots is not None:
            most = min(most, max(1, self._slots.count // self._calls.limits.threads))
        return [slice(at, at + most) for at in range(0, count, most)]

    def _by_part(self, wing: Wing, digests: Sequence[bytes], pages: Pages) -> tuple[list[PageKey], Addresses]:
        """Keys and addresses: the first part of all pages, then the next.

        So neighbours in SGLang's memory are neighbours in the call, and can be moved as one.
        """
        keys = [key for tag in wing.tags for key in Names.keys(digests, [tag])]
        return keys, self.pool.addresses(wing.parts, pages).T.reshape(-1)

    def _parts(self, pages: Pages) -> list[list[memoryview]]:
        """The bytes of each page, part by part."""
        found: list[list[memoryview]] = [[] for _ in pages]
        for number, part in enumerate(self.pool.parts):
            addresses = self.pool.addresses([number], pages)
            for page, buffer in zip(found, part.region.buffers(addresses, part.nbytes), strict=True):
                page.append(buffer)
        return found

    def _count(self, good: Sequence[bool], what: str) -> None:
        count = sum(good)
        self._calls.guard.add(**{f"pages_{what}": count, f"bytes_{what}": count * self.pool.page_bytes})


def _through(
    slots: Slots, wing: Wing, keys: Sequence[PageKey], addresses: Addresses, ticket: Ticket, *, reading: bool
) -> list[PageResult]:
    """Move pages by way of memory of ours, as many at a time as it holds. SGLang's is touched under the ticket only."""
    results: list[PageResult] = []
    step = max(1, slots.count // 4)
    for start in range(0, len(keys), step):
        part = slice(start, start + step)
        with slots.lend(len(keys[part])) as lent:
            pairs = list(zip(addresses[part].tolist(), lent.tolist(), strict=True))
            views = slots.region.views(lent, wing.nbytes)
            if reading:
                some = list(wing.storage.read(keys[part], views))
                pairs = [pair for pair, one in zip(pairs, some, strict=True) if isinstance(one, Done)]
            with ticket.lock:
                if ticket.left:
                    return [*results, *[LATE] * (len(keys) - len(results))]
                for theirs, ours in pairs:
                    copy(*((theirs, ours) if reading else (ours, theirs)), wing.nbytes)
            if not reading:
                some = list(wing.storage.write(keys[part], views))
            results += some
    return results


def _fold(worst: list[PageResult], results: Sequence[PageResult], parts: int) -> None:
    """A page is as good as the worst of its parts; `results`: of all pages by part."""
    if len(results) != len(worst) * parts:
        raise ValueError(f"{len(results)} results came for {len(worst) * parts} parts of pages")
    for at, result in enumerate(results):
        page = at % len(worst)
        if not isinstance(result, Done) and not isinstance(worst[page], Failed):
            worst[page] = result


def _done(results: Sequence[PageResult]) -> list[bool]:
    return [isinstance(one, Done) for one in results]
