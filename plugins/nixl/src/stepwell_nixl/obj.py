"""The store of `nixl-obj`: a page is an object, whole or not there, moved by NIXL's OBJ backend.

Each page is a transfer of its own, several of a batch in flight at once. NIXL reports the first error of a transfer
while its other requests still write into memory, so a transfer of several pages could not be waited for.

It also takes a short object for a whole one. So a page's last byte is changed before it is read; where it comes back as
it was set, which one page in 256 does by chance, the page is read again over another.

NIXL leaves the AWS library at its own retries: ten of them, 25 s for a server that is gone. Its client reads from the
environment alone how many it may make, when it is made, so it is told so there and then. That leaves 6 s for each
request to a server that accepts and does not answer, so before and after a request that failed somebody else knocks.
"""

from __future__ import annotations

import itertools
import os
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice

from stepwell import (
    DONE,
    MISSING,
    ArenaView,
    Context,
    Failed,
    PageKey,
    PageResult,
    PageViews,
    PluginError,
    Storage,
    StoredPage,
)
from stepwell_nixl.bucket import Bucket, installed, name_of
from stepwell_nixl.client import Agent, Handle, make_agent, told
from stepwell_nixl.config import ObjConfig
from stepwell_nixl.lanes import Lane, Lanes
from stepwell_nixl.transfer import Op

PAUSE_S = 100e-6
LONGEST_S = 2e-3
UNMOVED = Failed("NIXL did not move the object; the reason is on standard error")
SHORT = Failed("the object is shorter than the page")
HEARD_S = 0.25
"""For how long a server that answered is taken to be there."""
ASKED = 4
"""Questions whether an object is there that wait for each of the client's threads."""
TRIES = 8
"""Of an object that cannot be read though it is there: others may have removed and stored it again."""
RETRIES = {"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "2"}


class Numbers:
    """Device numbers of objects, none given twice: NIXL finds an object's name by it."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._lock = threading.Lock()

    def take(self, count: int) -> range:
        """Some in a row."""
        with self._lock:
            first = next(self._next)
            for _ in range(count - 1):
                next(self._next)
            return range(first, first + count)


class Door:
    """Whether the server answers anything at all."""

    def __init__(self, config: ObjConfig) -> None:
        self._address, self._timeout_s = config.address, config.timeout_s
        self._tls = ssl.create_default_context(cafile=config.ca_bundle or None) if config.secure else None

    def answers(self) -> bool:
        """Knock."""
        host, port = self._address
        if self._tls is not None:
            line: HTTPConnection = HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        else:
            line = HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            line.request("HEAD", "/")
            line.getresponse()
        except (OSError, HTTPException):
            return False
        finally:
            line.close()
        return True


class ObjLane(Lane):
    """An agent with a client of S3 and its threads."""

    def __init__(self, agent: Agent, arena: ArenaView, door: Door, abreast: int) -> None:
        super().__init__(agent, arena, "OBJ")
        self._door, self._abreast = door, abreast

    def move(self, op: Op, names: Sequence[str], numbers: range, addresses: Sequence[int], size: int) -> list[bool]:
        """Move pages between memory and objects; which were moved."""
        agent = self.agent
        objects = [(0, size, number, name) for number, name in zip(numbers, names, strict=True)]
        registered = agent.register_memory(objects, "OBJ")
        try:
            return self._fly(op, list(zip(addresses, numbers, strict=True)), size)
        finally:
            agent.deregister_memory(registered)

    def has(self, names: Sequence[str]) -> list[bool]:
        """Which objects are there. Raises where the server does not say."""
        held: list[bool] = []
        for at in range(0, len(names), ASKED * self._abreast):
            objects = [(0, 0, 0, name) for name in names[at : at + ASKED * self._abreast]]
            held += [one is not None for one in self.agent.query_memory(objects, "OBJ", "OBJ")]
        return held

    def _start(self, op: Op, address: int, size: int, number: int) -> Handle | None:
        agent = self.agent
        handle = None
        try:
            near = agent.get_xfer_descs([(address, size, 0)], "DRAM")
            far = agent.get_xfer_descs([(0, size, number)], "OBJ")
            handle = agent.initialize_xfer(op, near, far, agent.name)
            agent.transfer(handle)
            return handle
        except self.errors:
            if handle is not None:
                self._release(handle)
            return None

    def _fly(self, op: Op, pages: Sequence[tuple[int, int]], size: int) -> list[bool]:
        """Move pages, `abreast` at a time, until all are moved or the server turns out to be gone."""
        moved = [False] * len(pages)
        flying: list[tuple[int, Handle]] = []
        waiting: Iterator[tuple[int, tuple[int, int]]] = iter(enumerate(pages))
        pause = PAUSE_S
        while True:
            for at, (address, number) in islice(waiting, self._abreast - len(flying)):
                handle = self._start(op, address, size, number)
                if handle is not None:
                    flying.append((at, handle))
            if not flying:
                return moved
            left, bad = [], False
            for at, handle in flying:
                state = self._state(handle)
                if state == "PROC":
                    left.append((at, handle))
                    continue
                moved[at] = state == "DONE"
                bad = bad or not moved[at]
                self._release(handle)
            if len(left) == len(flying):
                time.sleep(pause)
                pause = min(pause * 1.1, LONGEST_S)
            else:
                pause = PAUSE_S
            if bad and not self._door.answers():
                waiting = iter(())
            flying = left

    def _state(self, handle: Handle) -> str:
        try:
            return self.agent.check_xfer_state(handle)
        except self.errors:
            return "ERR"

    def _release(self, handle: Handle) -> None:
        with suppress(*self.errors):
            self.agent.release_xfer_handle(handle)


class ObjStorage(Storage):
    """Pages in a bucket."""

    def __init__(self, config: ObjConfig, context: Context) -> None:
        self._config = config
        self._log = context.log
        host, port = config.address
        self._door = Door(config)
        if not self._door.answers():
            raise PluginError(
                f"storage.endpoint = {config.endpoint!r}: {host}:{port} does not answer; start the server, or name "
                f"another"
            )
        self._bucket = Bucket(config) if installed() else None
        if self._bucket is not None:
            self._bucket.check()
        self._numbers = Numbers()
        self._heard = time.monotonic()
        self._lanes: Lanes[ObjLane] | None = None

    def attach(self, arena: ArenaView) -> None:
        lanes = Lanes(lambda: ObjLane(make_client(self._config), arena, self._door, self._config.threads))
        with lanes.one():
            self._lanes = lanes

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        if not keys:
            return []
        self._heard = 0.0  # a question that is not answered takes longer than one more knock
        self._knock()
        with self._attached().one() as lane:
            try:
                held = lane.has(self._names(keys))
            except lane.errors as error:
                raise OSError(f"the server does not say what it has: {error}") from None
        self._heard = time.monotonic()
        return held

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        ends = [buffer[-1:] for buffer in into.buffers()]
        size, addresses = int(into.sizes[0]), into.addresses[:, 0].tolist()
        mark = os.urandom(1)
        for end in ends:
            end[:] = mark
        results = self._move("READ", keys, addresses, size)
        doubtful = [at for at, end in enumerate(ends) if results[at] is DONE and end == mark]
        if not doubtful:
            return results
        other = bytes([mark[0] ^ 0xFF])
        for at in doubtful:
            ends[at][:] = other
        again = self._move("READ", [keys[at] for at in doubtful], [addresses[at] for at in doubtful], size)
        for at, result in zip(doubtful, again, strict=True):
            results[at] = SHORT if result is DONE and ends[at] == other else result
        return results

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        return self._move("WRITE", keys, pages.addresses[:, 0].tolist(), int(pages.sizes[0]))

    def delete(self, keys: Sequence[PageKey]) -> None:
        if self._bucket is not None and keys:
            self._bucket.delete(keys)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        if self._bucket is None:
            raise NotImplementedError("listing a bucket needs boto3: pip install 'stepwell-nixl[obj]'")
        yield from self._bucket.scan()

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    def _move(self, op: Op, keys: Sequence[PageKey], addresses: Sequence[int], size: int) -> list[PageResult]:
        if not keys:
            return []
        names = self._names(keys)
        results: list[PageResult] = [UNMOVED] * len(keys)
        left = list(range(len(keys)))
        self._knock()
        with self._attached().one() as lane:
            for _ in range(TRIES if op == "READ" else 1):
                numbers = self._numbers.take(len(left))
                moved = lane.move(op, [names[at] for at in left], numbers, [addresses[at] for at in left], size)
                for at, one in zip(left, moved, strict=True):
                    if one:
                        results[at] = DONE
                left = [at for at, one in zip(left, moved, strict=True) if not one]
                if left and op == "READ":
                    left = self._there(lane, names, left, results)
                if not left:
                    break
        if DONE in results or MISSING in results:
            self._heard = time.monotonic()
        return results

    def _knock(self) -> None:
        """Raise where the server was not heard of for a while and does not answer now."""
        if time.monotonic() - self._heard > HEARD_S and not self._door.answers():
            raise OSError(f"{self._config.endpoint or 'AWS'} does not answer")

    def _there(self, lane: ObjLane, names: Sequence[str], lost: list[int], results: list[PageResult]) -> list[int]:
        """Of the objects that could not be read, those that are there; the others are missing."""
        if not self._door.answers():
            return []
        try:
            held = lane.has([names[at] for at in lost])
        except lane.errors:
            return []  # the server does not say: they have failed
        for at, one in zip(lost, held, strict=True):
            if not one:
                results[at] = MISSING
        return [at for at, one in zip(lost, held, strict=True) if one]

    def _names(self, keys: Sequence[PageKey]) -> list[str]:
        prefix = self._config.prefix
        return [name_of(prefix, key) for key in keys]

    def _attached(self) -> Lanes[ObjLane]:
        if self._lanes is None:
            raise RuntimeError("the storage was not attached, or is closed")
        return self._lanes


def make_client(config: ObjConfig) -> Agent:
    """An agent whose S3 client makes few retries, unless whoever started the process asked for others."""
    with told(RETRIES):
        return make_agent("OBJ", params(config), "use = 'nixl-obj'")


def params(config: ObjConfig) -> dict[str, str]:
    """The settings as NIXL wants them."""
    given = {
        "bucket": config.bucket,
        "endpoint_override": config.endpoint,
        "scheme": config.endpoint.partition("://")[0] or "https",
        "region": config.region,
        "access_key": str(config.access_key or ""),
        "secret_key": str(config.secret_key or ""),
        "ca_bundle": config.ca_bundle,
        "use_virtual_addressing": str(config.virtual_addressing).lower(),
        "req_checksum": "required",
        "resp_checksum": "required",
        "num_threads": str(config.threads),
    }
    return {name: value for name, value in given.items() if value}
