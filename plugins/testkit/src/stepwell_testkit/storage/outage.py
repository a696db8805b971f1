"""The store's server killed, frozen and started again: calls stay short and honest, and the store recovers by itself.

An exception out of a call is a failure of its whole batch, so it is a right answer here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import pytest

from stepwell import DONE, Capability, Failed, PageResult
from stepwell_testkit.bench import Bench, answers
from stepwell_testkit.storage.base import StorageBase

T = TypeVar("T")
PUT = range(8)
"""Pages that are there before the outage."""
NEW = range(8, 16)
"""Pages that are written in it."""
GONE = [6, 7]
"""Pages that are deleted in it."""
NEVER = range(200, 208)


class Mortal(Protocol):
    """A server that a test can end."""

    def kill(self) -> None: ...
    def restart(self) -> object: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class Outage(StorageBase):
    """Needs the fixture `server`."""

    @pytest.fixture
    def mortal(self) -> Mortal:
        """The server, made before the storage that talks to it."""
        server: Mortal | None = self.given("server")
        if server is None:
            pytest.skip("the fixture `server` is not given")
        return server

    def test_a_dead_server_costs_misses_and_nothing_else(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        with _killed(mortal):
            deleted = self._every_call(bench, "dead")
        self._recovers(bench, deleted)

    def test_a_frozen_server_costs_misses_and_nothing_else(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        with _frozen(mortal):
            deleted = self._every_call(bench, "frozen")
            bench.arena.paint(0x3C)
        self._recovers(bench, deleted, painted=0x3C)

    def test_a_server_killed_under_way_costs_misses_and_nothing_else(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        over = threading.Event()
        done = [0, 0, 0, 0]

        def again(at: int, call: Callable[[], None]) -> None:
            while not over.is_set():
                with suppress(_Raised):
                    call()
                done[at] += 1
                time.sleep(0.001)

        calls = self._calls(bench, "killed under way")
        errors: list[BaseException] = []

        def run(at: int) -> None:
            try:
                again(at, calls[at])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(at,), daemon=True, name=f"kit-{at}") for at in range(4)]
        for thread in threads:
            thread.start()
        try:
            self._until(lambda: errors or min(done) > 2, "its calls did not come back before the kill")
            with _killed(mortal):
                before = list(done)
                two = [count + 2 for count in before]  # the one under way, and one that began afterwards
                self._until(
                    lambda: errors or all(now >= then for now, then in zip(done, two, strict=True)),
                    "calls hang since the server was killed",
                    within_s=2 * self.patience_s,
                )
        finally:
            over.set()
            for thread in threads:
                thread.join(2 * self.patience_s)
        if errors:
            raise errors[0]
        self._recovers(bench, None)

    def test_a_server_started_anew_while_nobody_calls_is_found_again(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        mortal.restart()
        self._recovers(bench, None)

    def test_close_returns_though_the_server_is_dead(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        with _killed(mortal):
            self._bounded("close", "dead", bench.close)

    def test_close_returns_though_the_server_is_frozen(self, mortal: Mortal, bench: Bench) -> None:
        bench.put(PUT)
        with _frozen(mortal):
            self._bounded("close", "frozen", bench.close)

    # --- what holds ----------------------------------------------------------------------------------------------

    def _every_call(self, bench: Bench, how: str) -> bool:
        """Each kind of call once, all at the same time; whether deletion was answered without an exception."""
        calls = self._calls(bench, how)
        raised = _at_the_same_time(calls)
        return not isinstance(raised[3], _Raised)

    def _calls(self, bench: Bench, how: str) -> list[Callable[[], None]]:
        """contains, read, write and delete, each held to what it may answer then."""

        def contains() -> None:
            claims = self._bounded("contains", how, lambda: bench.storage.contains(bench.keys([*PUT, *NEVER])))
            assert len(claims) == 16 and all(claim in (True, False) for claim in claims), f"contains answered {claims}"
            claimed = [number for number, claim in zip(NEVER, claims[8:], strict=True) if claim]
            assert not claimed, f"contains claims pages that nobody wrote: the server is {how}"

        def read() -> None:
            self._honest(bench, [*PUT, *NEVER], self._read(bench, 0, [*PUT, *NEVER], how))

        def write() -> None:
            results = self._bounded("write", how, lambda: bench.write(NEW, range(16, 24)))
            claimed = [number for number, result in zip(NEW, results, strict=True) if result == DONE]
            if claimed and how in ("dead", "frozen"):
                try:
                    found = self._honest(bench, claimed, self._read(bench, 24, claimed, how))
                except _Raised:
                    found = [False]
                assert all(found), f"writing pages {claimed} was DONE and reading them is not: the server is {how}"

        def delete() -> None:
            self._bounded("delete", how, lambda: bench.storage.delete(bench.keys(GONE)))

        return [contains, read, write, delete]

    def _read(self, bench: Bench, slot: int, numbers: Sequence[int], how: str) -> Sequence[PageResult]:
        views = bench.arena.views(range(slot, slot + len(numbers)))
        results = self._bounded("read", how, lambda: bench.storage.read(bench.keys(numbers), views))
        pages = [bench.arena.page(slot + at) for at in range(len(numbers))]
        for number, result, page in zip(numbers, answers(results, len(numbers)), pages, strict=True):
            assert result != DONE or page == bench.bytes_of(number), f"page {number} is DONE with other bytes"
        return results

    def _honest(self, bench: Bench, numbers: Sequence[int], results: Sequence[PageResult]) -> list[bool]:
        ghosts = [number for number, result in zip(numbers, results, strict=True) if result == DONE and number in NEVER]
        assert not ghosts, f"pages {ghosts} were read that nobody wrote"
        return [result == DONE for result in results]

    def _recovers(self, bench: Bench, deleted: bool | None, painted: int | None = None) -> None:
        """The same instance works again, late answers hurt nobody, and what was answered in the outage holds."""
        slots = range(32, 40)
        told: list[object] = []

        def works() -> bool:
            try:
                results = [*bench.write(range(100, 108), slots), *bench.read(range(100, 108), slots)[0]]
            except Exception as error:
                told[:] = [error]
                return False
            told[:] = [result for result in results if result != DONE]
            return not told

        def why() -> str:
            return f"the server is back and the store does not work again: {told[0] if told else 'a call hangs'!r}"

        ends = time.monotonic() + self.patience_s
        while not self._bounded("a call", "back", works):
            assert time.monotonic() < ends, why()
            time.sleep(0.05)
        if painted is not None:
            time.sleep(0.2)  # for what comes late
            touched = [slot for slot in range(32) if set(bench.arena.slack(slot)) != {painted}]
            assert not touched, f"an answer that came late was written into slots {touched}, which are others' by then"
        for _ in range(3):
            bench.put(range(100, 108))
            bench.gets(range(100, 108))
        results, pages = bench.read([*PUT, *NEW, *NEVER], range(40, 64))
        while any(isinstance(result, Failed) for result in results) and time.monotonic() < ends:
            time.sleep(0.1)  # what lay in a part of the store that is gone may fail until that is noticed
            results, pages = bench.read([*PUT, *NEW, *NEVER], range(40, 64))
        for number, result, page in zip([*PUT, *NEW, *NEVER], results, pages, strict=True):
            assert not isinstance(result, Failed), f"the server is back and reading page {number} gives {result}"
            assert result != DONE or page == bench.bytes_of(number), f"page {number} came back with other bytes"
            assert result != DONE or number not in NEVER, f"page {number} is found that nobody wrote"
            deletion = deleted and self.claims(Capability.DELETES) and number in GONE
            assert not (deletion and result == DONE), f"page {number} was deleted in the outage and is found"

    def _bounded(self, call: str, how: str, work: Callable[[], T]) -> T:
        """The answer of a call that has to come within `patience_s`; `_Raised` where it is an exception."""
        outcome: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True, name=f"kit-{call}")
        thread.start()
        thread.join(self.patience_s)
        assert not thread.is_alive(), f"{call} took more than {self.patience_s:g} s: the server is {how}"
        if errors and (isinstance(errors[0], AssertionError) or not isinstance(errors[0], Exception)):
            raise errors[0]
        if errors and call == "close":
            raise AssertionError(f"close raised {errors[0]!r}: the server is {how}") from errors[0]
        if errors:
            raise _Raised(f"{call} raised {errors[0]!r}") from errors[0]
        return outcome[0]

    def _until(self, true: Callable[[], object], else_say: str, within_s: float = 0.0) -> None:
        end = time.monotonic() + (within_s or self.patience_s)
        while not true():
            assert time.monotonic() < end, else_say
            time.sleep(0.005)


class _Raised(Exception):
    """A call raised, which is a failure of its batch and nothing worse."""


def _at_the_same_time(calls: Sequence[Callable[[], None]]) -> list[BaseException | None]:
    """What each call raised; an error of the contract is raised here."""
    raised: list[BaseException | None] = [None] * len(calls)

    def run(at: int) -> None:
        try:
            calls[at]()
        except BaseException as error:
            raised[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # each bounds itself
    for error in raised:
        if error is not None and not isinstance(error, _Raised):
            raise error
    return raised


@contextmanager
def _killed(server: Mortal) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.restart()


@contextmanager
def _frozen(server: Mortal) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()
