"""The store: a page is an object, moved between the arena and the store's segments by the client itself.

Each answer of the client is a code and compared with what it has to be: an error is a negative number, and as true as
any other. What is added to the client is what its codes ask for: another try where there was no room yet, another look
at bytes that were taken away during a read, and no call at all while the master is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from stepwell import (
    DONE,
    MISSING,
    ArenaView,
    ConfigError,
    Context,
    Failed,
    PageKey,
    PageResult,
    PageViews,
    Storage,
    StoredPage,
)
from stepwell_mooncake.admin import listed
from stepwell_mooncake.client import (
    BAD_PARAMS,
    EXISTS,
    LEASE_EXPIRED,
    LEASED,
    MASTER_SILENT,
    NO_MASTER,
    NO_SPACE,
    NOT_FOUND,
    NOT_READY,
    OK,
    WRONG_CHECKSUM,
    Client,
    meaning,
)
from stepwell_mooncake.config import MIB, MooncakeConfig
from stepwell_mooncake.gate import Gate
from stepwell_mooncake.master import Master
from stepwell_mooncake.moves import Numbers, get_each, names_of, put_each

Move = Callable[[list[str], Numbers, Numbers], list[int]]

FULL_S = 1.0
"""How long a store in which no room came free is not waited for again."""
BUSY_RETRIES, BUSY_PAUSE_S = 20, 0.005
"""For a page that is being written, or read, when it is to be deleted."""
STALE_LINES, STALE_S = 16, 0.5
"""The client keeps connections to the master. Of a master that was started anew each is found dead by one call, which
fails at once; a call that took longer failed for another reason."""
CLOSE_S = 5.0
"""How long calls under way are waited for."""
LISTED = 256
"""Pages in one batch of a listing."""


class MooncakeStorage(Storage):
    """Pages in a Mooncake store. `client` is set up; `how` is how it puts pages."""

    def __init__(self, config: MooncakeConfig, context: Context, client: Client, how: object) -> None:
        self._config, self._log, self._clock = config, context.log, context.clock
        self._client, self._how = client, how
        self._master = Master(config.address, context.clock)
        self._gate = Gate()
        self._registered = 0
        self._full_until = float("-inf")

    def attach(self, arena: ArenaView) -> None:
        with self._gate.call():
            if self._registered:
                self._client.unregister_buffer(self._registered)
            code = self._client.register_buffer(arena.address, arena.nbytes)
        if code != OK:
            raise ConfigError(
                f"storage.protocol: Mooncake cannot register {arena.nbytes // MIB} MiB of host memory for"
                f" {self._config.protocol}: {meaning(code)}; let the process lock as much (ulimit -l), or take less"
            )
        self._registered = arena.address

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        names = self._names(keys)
        codes = self._call(len(names), lambda: self._client.batch_is_exist(names))
        if codes and max(codes) < 0:
            raise ConnectionError(self._why(codes[0]))
        return [code == 1 for code in codes]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        def move(names: list[str], addresses: Numbers, sizes: Numbers) -> list[int]:
            return get_each(self._client, names, addresses, sizes)

        names, whole = self._names(keys), int(into.sizes.sum())
        codes = self._call(len(names), lambda: move(names, into.addresses, into.sizes))
        if codes.count(whole) == len(codes):
            return [DONE] * len(codes)
        # Most likely torn, as the page left while it was read: then it is missing now.
        self._repeat(move, names, into, codes, (WRONG_CHECKSUM, LEASE_EXPIRED))
        self._forget_useless(names, codes, whole)
        return self._results(codes, {whole: DONE, NOT_FOUND: MISSING, NOT_READY: MISSING})

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        def move(names: list[str], addresses: Numbers, sizes: Numbers) -> list[int]:
            return put_each(self._client, names, addresses, sizes, self._how)

        names = self._names(keys)
        codes = self._call(len(names), lambda: move(names, pages.addresses, pages.sizes))
        if NO_SPACE in codes and self._clock() >= self._full_until:
            self._wait_for_space(move, names, pages, codes)
        return self._results(codes, {OK: DONE, EXISTS: DONE})

    def delete(self, keys: Sequence[PageKey]) -> None:
        left: list[str] = list(dict.fromkeys(self._names(keys)))
        wrong: list[int] = []
        for turn in range(BUSY_RETRIES + 1):
            if turn and not self._gate.pause(BUSY_PAUSE_S):
                break
            codes = self._call(len(left), lambda names=left: self._client.batch_remove(names, True))  # type: ignore[misc]
            left = [name for name, code in zip(left, codes, strict=True) if code not in (OK, NOT_FOUND)]
            wrong = [code for code in codes if code not in (OK, NOT_FOUND)]
            if not wrong or not {*wrong} <= {LEASED, NOT_READY}:
                break
        # What others write all the while is not there yet: it comes after this deletion.
        stuck = [code for code in wrong if code != NOT_READY]
        if stuck:
            raise ConnectionError(f"{len(stuck)} pages were not deleted: {self._why(stuck[0])}")

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        names = listed(self._config)
        skip = len(self._config.prefix)
        while batch := list(islice(names, LISTED)):
            sizes = self._call(len(batch), lambda names=batch: [self._client.get_size(name) for name in names])  # type: ignore[misc]
            if gone := {NO_MASTER, MASTER_SILENT}.intersection(sizes):
                raise ConnectionError(self._why(gone.pop()))
            yield [StoredPage(bytes.fromhex(name[skip:]), n) for name, n in zip(batch, sizes, strict=True) if n > 0]

    def close(self) -> None:
        empty = self._gate.close(CLOSE_S)
        if empty is None:
            return
        self._master.close()
        if not empty:
            self._log.warning("calls have not returned for %g s, so the client is left open", CLOSE_S)
            return
        if self._registered:
            self._client.unregister_buffer(self._registered)
        self._client.close()

    # --- inside --------------------------------------------------------------------------------------------------

    def _names(self, keys: Sequence[PageKey]) -> list[str]:
        return names_of(self._config.prefix, keys)

    def _call(self, count: int, call: Callable[[], list[int]]) -> list[int]:
        """What `call` answers, one code a page; without a call where it would wait for a master that is gone."""
        if not count:
            return []
        with self._gate.call():
            for _ in range(STALE_LINES):
                if not self._master.here:
                    return [NO_MASTER] * count
                began = self._clock()
                codes = call()
                if MASTER_SILENT in codes:
                    self._master.silent()
                elif NO_MASTER in codes:
                    self._master.lost()
                if NO_MASTER not in codes or self._clock() - began > STALE_S:
                    break
        return codes

    def _repeat(
        self, move: Move, names: list[str], pages: PageViews, codes: list[int], which: Sequence[int]
    ) -> list[int]:
        """Move the pages again whose code is one of `which`, and put their new codes in place; these."""
        at = [index for index, code in enumerate(codes) if code in which]
        again = self._call(len(at), lambda: move([names[index] for index in at], pages.addresses[at], pages.sizes))
        for index, code in zip(at, again, strict=True):
            codes[index] = code
        return again

    def _wait_for_space(self, move: Move, names: list[str], pages: PageViews, codes: list[int]) -> None:
        """Eviction begins when room runs out and goes on beside; without any to evict there is no use in waiting."""
        for _ in range(self._config.space_retries):
            if not self._gate.pause(self._config.space_pause_s):
                return
            if NO_SPACE not in self._repeat(move, names, pages, codes, (NO_SPACE,)):
                return
        self._full_until = self._clock() + FULL_S

    def _forget_useless(self, names: list[str], codes: list[int], whole: int) -> None:
        """Remove pages that are damaged, or of another size, for good: as long as they are there, none is written."""
        useless = [
            name
            for name, code in zip(names, codes, strict=True)
            if code == WRONG_CHECKSUM
            or (code > 0 and code != whole)
            or (code == BAD_PARAMS and self._differs(name, whole))
        ]
        if useless:
            self._log.warning("%d pages were damaged or of another size, and are removed", len(useless))
            self._call(len(useless), lambda: self._client.batch_remove(useless, True))

    def _differs(self, name: str, whole: int) -> bool:
        (size,) = self._call(1, lambda: [self._client.get_size(name)])
        return size > 0 and size != whole

    def _results(self, codes: list[int], known: Mapping[int, PageResult]) -> list[PageResult]:
        results = {code: known.get(code) or Failed(self._why(code)) for code in set(codes)}
        return [results[code] for code in codes]

    def _why(self, code: int) -> str:
        if code > 0:
            return f"the store holds {code} bytes under this key"
        return f"{self._config.master}: {meaning(code)}"
