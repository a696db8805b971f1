"""A storage in a process of its own answers as it would in this one, and whatever befalls it costs hits only."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from stepwell import Capability
from stepwell.abc.storage import Storage
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.cache.arena import Arena
from stepwell.config import Chosen, Origin
from stepwell.engine.apart import client, process
from stepwell.engine.apart.client import ApartStorage, Lost
from stepwell.engine.apart.wire import StorageError
from stepwell.engine.making import Place
from stepwell.engine.parts import attach_storage
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Offer
from stepwell.types import DONE, MISSING, Done, Failed, Full, GroupSpec, PageKey, PageResult, PageViews
from stepwell_testkit import KitContext, StorageKit

from .conftest import Wild, running, wait_until

PAGES = 64


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create((GroupSpec("full", Full(), 32, (0,)),), 16, (PAGES,))
    yield arena
    arena.close()


def key(number: int) -> PageKey:
    return number.to_bytes(40, "big")


def views(arena: Arena, ids: Sequence[int]) -> PageViews:
    return arena.views(0, np.array(ids, np.int32))


def up(storage: Storage, arena: Arena) -> bool:
    with suppress(StorageError):
        return isinstance(storage.contains([key(0)]), list)
    return False


class TestMemoryApart(StorageKit):
    provides = frozenset({Capability.DELETES, Capability.LISTS, Capability.EVICTS})
    limit_bytes = 4 * 2**20
    forks = False

    @pytest.fixture
    def storage(self, context: KitContext) -> Iterator[Storage]:
        offer = Offer("memory", MemoryStorage, MemoryConfig)
        choice = Chosen("storage", offer, MemoryConfig(self.limit_bytes / 2**30), Origin("test"))
        storage = ApartStorage(choice, Place("memory", "cpu", lambda: context.state_dir), limit_s=60.0)
        yield storage
        storage.close()


# --- it answers as it would here ---------------------------------------------------------------------------------


def test_results_come_back_page_by_page_with_their_reasons(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    assert isinstance(storage, ApartStorage)
    storage.attach(arena)
    assert storage.write([key(1), key(2)], views(arena, [0, 1])) == [DONE, DONE]
    asked = [key(1), b"bad one".ljust(40), key(9), b"bad two".ljust(40), b"bad one".ljust(40), key(2)]
    results = storage.read(asked, views(arena, range(6)))
    one, two = Failed("page  one    is bad"), Failed("page  two    is bad")
    assert results == [DONE, one, MISSING, two, one, DONE]
    assert results[0] is DONE and results[2] is MISSING, "no object a page"
    assert list(storage.contains([key(2), key(3), key(1)])) == [True, False, True]
    assert storage.read([], views(arena, [])) == []


def test_more_reasons_than_a_byte_can_count_still_fail_every_page(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    many = [b"bad" + str(number).encode().ljust(37) for number in range(600)]
    results = storage.read(many, views(arena, [at % PAGES for at in range(600)]))
    assert all(isinstance(result, Failed) for result in results)
    assert len({str(result) for result in results}) == 254


def test_an_exception_arrives_with_its_name_and_the_next_call_works(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    for fault, text in (("raise", "OSError: the cable fell out"), ("exit", "SystemExit: 3")):
        wild.fault(fault)
        for call in (
            lambda: storage.read([key(1)], views(arena, [0])),
            lambda: storage.contains([key(1)]),
            lambda: storage.delete([key(1)]),
            lambda: list(storage.scan()),
        ):
            with pytest.raises(StorageError, match=text):
                call()
    wild.fault()
    assert storage.write([key(1)], views(arena, [0])) == [DONE]
    with pytest.raises(StorageError, match="a bool came in place of a page's result"):
        storage.read([b"odd".ljust(40)], views(arena, [0]))
    assert storage.values()["process_restarts"] == 0


def test_what_cannot_be_asked_is_refused_here(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    other = Arena.create((GroupSpec("full", Full(), 32, (0,)),), 16, (PAGES,))
    with pytest.raises(ValueError, match="outside the host tier's memory"):
        storage.read([key(1)], views(other, [PAGES - 1]))
    with pytest.raises(ValueError, match="40 bytes"):
        storage.contains([b"short"])
    other.close()


def test_the_pages_are_listed_piece_by_piece(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    storage.write([key(number) for number in range(20)], views(arena, range(20)))
    batches = list(storage.scan())
    assert len(batches) == 20, "as they come"
    assert {page for batch in batches for page in batch} == {(key(number), 1024) for number in range(20)}
    for _ in range(5):
        assert len(list(islice(storage.scan(), 3))) == 3, "nobody has to listen to the end"
    assert storage.contains([key(3)]) == [True]
    with pytest.raises(NotImplementedError, match="cannot list"):
        next(wild.make("unlisted").scan())


def test_calls_of_several_threads_are_under_way_at_once(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    wild.fault("slow")
    began = time.monotonic()
    threads = [threading.Thread(target=storage.contains, args=([key(at)],)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 3.0, "eight times 0.5 s one after the other are 4 s"


def test_a_call_costs_little_more_than_it_would_here(arena: Arena) -> None:
    """The best of many, until it is good enough: what it costs where nothing else wants the machine."""
    choice = Chosen("storage", Offer("memory", MemoryStorage, MemoryConfig), MemoryConfig(), Origin("test"))
    place = Place("memory", "cpu", Path)
    apart, here = ApartStorage(choice, place, limit_s=60.0), MemoryStorage(MemoryConfig(), place)
    apart.attach(arena)
    keys = [key(number) for number in range(4096)]
    slots = [at % PAGES for at in range(4096)]

    def taken(storage: Storage, count: int) -> float:
        began = time.perf_counter()
        assert storage.read(keys[:count], views(arena, slots[:count])) == [MISSING] * count
        return time.perf_counter() - began

    with closing(apart):
        for count, limit in ((64, 150e-6), (4096, 4096 * 1.5e-6)):
            least = min(taken(here, count) for _ in range(20))
            wait_until(lambda: min(taken(apart, count) for _ in range(20)) - least < limit)  # noqa: B023 - called at once


def test_it_is_told_of_the_memory_and_maps_it(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    pid, name, fd, nbytes, slots = (wild.folder / "attached").read_text().split(" ", 4)
    assert int(pid) == storage.pid != os.getpid()
    assert (name, int(nbytes), slots) == ("", arena.nbytes, str(arena.slots(0)))
    assert int(fd) > 2


def test_memory_with_a_name_has_it_while_each_process_registers_it(wild: Wild) -> None:
    arena = Arena.create((GroupSpec("full", Full(), 32, (0,)),), 16, (PAGES,), named=True)
    arena.memory[:8] = b"the page"
    storage = wild.make("by-name")
    first = arena.name
    attach_storage(storage, arena)
    os.kill(storage.pid, signal.SIGKILL)
    (wild.folder / "named").unlink()
    wait_until(lambda: up(storage, arena))
    assert (wild.folder / "named").read_bytes() == b"the page", "it was read by its name in the next process, too"
    second = (wild.folder / "attached").read_text().split(" ")[1]
    assert first and second and first != second
    assert arena.name == "" and not Path("/dev/shm", first).exists() and not Path("/dev/shm", second).is_symlink()
    arena.close()


def test_which_offers_get_a_process_and_which_do_not(wild: Wild, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(wild.make("wild"), ApartStorage)
    assert not isinstance(wild.make("tame"), ApartStorage)
    assert not isinstance(wild.make("wild", own_process=False), ApartStorage)
    assert isinstance(wild.make("tame", own_process=True), ApartStorage)
    pair = {"use": "mirror", "first": wild.table("tame"), "second": wild.table("wild")}
    assert isinstance(wild.make(table=pair), ApartStorage), "as soon as one of its parts wants it"
    assert not caplog.records
    assert not isinstance(wild.make("wild", shared=False), ApartStorage)
    assert "runs in this process, since the host tier's memory cannot be shared" in caplog.text


# --- start -------------------------------------------------------------------------------------------------------


def test_a_start_that_fails_says_what_it_would_say_here(wild: Wild) -> None:
    wild.fault("config make")
    for own in (True, False):
        with pytest.raises(ConfigError) as caught:
            wild.make(own_process=own)
        assert str(caught.value) == "storage.url: nobody answers at cache:1, start the server or name another"
    wild.fault("raise make")
    said = []
    for own in (True, False):
        with pytest.raises(PluginError) as fault:
            wild.make(own_process=own)
        said.append(str(fault.value))
    assert said[0] == said[1] and said[0].endswith("OSError: the cable fell out")


@pytest.mark.parametrize(("fault", "how"), [("segv", "was killed by SIGSEGV"), ("leave", "ended with status 7")])
def test_a_start_that_ends_the_process_is_one_sentence(wild: Wild, fault: str, how: str) -> None:
    wild.fault(f"{fault} make")
    with pytest.raises(PluginError, match=f"^storage.use = 'wild' .argument.: its process {how} before it was ready$"):
        wild.make()


def test_a_start_that_hangs_is_given_up(wild: Wild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", 0.5)
    wild.fault("hang make")
    with pytest.raises(PluginError, match=r"was not ready within 0.5 s"):
        wild.make()


def test_memory_that_cannot_be_registered_is_the_storages_own_error(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    wild.fault("raise attach")
    with pytest.raises(StorageError, match="the cable fell out"):
        storage.attach(arena)
    wild.fault("segv attach")
    with pytest.raises(PluginError, match="its process was killed by SIGSEGV, so it cannot register"):
        storage.attach(arena)


def test_an_offer_that_cannot_travel_says_what_to_do(wild: Wild) -> None:
    with pytest.raises(PluginError, match=r"no name there .*: set tiers.own_process = false"):
        wild.make("nameless")


def test_a_factory_that_is_not_found_there_is_one_sentence(wild: Wild) -> None:
    class Elsewhere(MemoryStorage):
        """Here only while this test runs."""

    Elsewhere.__qualname__ = Elsewhere.__name__
    Elsewhere.__module__ = "stepwell_wild"
    module = sys.modules["stepwell_wild"]
    module.Elsewhere = Elsewhere  # type: ignore[attr-defined]
    choice = Chosen("storage", Offer("elsewhere", Elsewhere, MemoryConfig), MemoryConfig(), Origin("test"))
    with pytest.raises(PluginError, match=r"^storage.use = 'elsewhere' \(test\): in its own process: AttributeError: "):
        ApartStorage(choice, Place("elsewhere", "cpu", lambda: wild.folder), limit_s=9.0)


def test_secrets_reach_it_and_no_command_line(wild: Wild) -> None:
    storage = wild.make(password="correct horse")
    assert (wild.folder / "password").read_text() == "correct horse"
    seen = Path(f"/proc/{storage.pid}/cmdline").read_bytes() + Path(f"/proc/{storage.pid}/environ").read_bytes()
    assert b"horse" not in seen and b"stepwell.engine.apart" in seen


def test_what_it_logs_and_prints_arrives(wild: Wild, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepwell")
    storage = wild.make()
    wild.fault("log")
    storage.contains([key(1)])
    wait_until(lambda: "printed" in caplog.text)
    assert ("stepwell.wild", logging.WARNING, "two\nlines") in caplog.record_tuples
    assert ("stepwell.wild", logging.INFO, "printed") in caplog.record_tuples
    assert "not wanted" not in caplog.text


def test_a_further_process_that_hangs_in_its_start_is_started_anew(wild: Wild) -> None:
    storage = wild.make()
    wild.fault("hang make")
    os.kill(wild.pid(), signal.SIGKILL)
    wait_until(lambda: storage.pid is None)
    time.sleep(0.5)  # the next one hangs by now
    wild.fault()
    wait_until(lambda: storage.pid is not None, 15.0)
    assert storage.restarts == 1


# --- death -------------------------------------------------------------------------------------------------------


def in_flight(storage: Storage, arena: Arena) -> tuple[threading.Thread, list[PageResult]]:
    """A read that is under way."""
    results: list[PageResult] = []
    reading = threading.Thread(target=lambda: results.extend(storage.read([key(1), key(2)], views(arena, [0, 1]))))
    reading.start()
    time.sleep(0.2)
    assert reading.is_alive()
    return reading, results


def test_death_fails_what_is_under_way_at_once_and_another_takes_over(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    storage.write([key(1)], views(arena, [5]))
    wild.fault("hang read")
    reading, results = in_flight(storage, arena)
    first = storage.pid
    os.kill(first, signal.SIGKILL)
    reading.join(10.0)
    assert results == [Failed("its process was killed by SIGKILL")] * 2
    assert not running(first), "the pages are nobody's only when it is gone"
    began = time.monotonic()
    again = storage.read([key(1)], views(arena, [0]))
    how = ("is being started again", "was killed by SIGKILL")  # the latter until the keeper has seen it too
    assert again in [[Failed(f"its process {one}")] for one in how] or time.monotonic() - began > 0.1, "nothing waits"
    wild.fault()
    wait_until(lambda: up(storage, arena))
    assert storage.read([key(1)], views(arena, [0])) == [DONE]
    assert storage.pid != first
    assert storage.values() == {"process_up": 1.0, "process_restarts": 1.0, "process_stuck": 0.0}


def test_a_crash_leaves_its_trace_in_the_log(wild: Wild, arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepwell")
    storage = wild.make()
    storage.attach(arena)
    wild.fault("segv contains")
    with pytest.raises(Lost, match="its process was killed by SIGSEGV"):
        storage.contains([key(1)])
    wild.fault()
    wait_until(lambda: up(storage, arena))
    assert "Fatal Python error: Segmentation fault" in caplog.text and "in act" in caplog.text
    assert "storage's process was killed by SIGSEGV; another is started in its place" in caplog.text


@pytest.mark.parametrize("fault", ["hang", "stop", "gil"])
def test_b068_a_call_that_stays_away_costs_the_process_and_not_the_pages(wild: Wild, arena: Arena, fault: str) -> None:
    storage = wild.make(limit_s=1.5)
    storage.attach(arena)
    wild.fault(f"{fault} read")
    reading, results = in_flight(storage, arena)
    reading.join(20.0)
    assert results == [Failed("its process was killed by SIGKILL")] * 2
    assert storage.values()["process_stuck"] == 1
    wild.fault()
    wait_until(lambda: up(storage, arena))
    assert storage.read([key(1)], views(arena, [0])) == [MISSING]


def test_it_is_started_again_and_again_with_growing_pauses(
    wild: Wild, arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.2)
    storage = wild.make()
    storage.attach(arena)
    wild.fault("config make")
    os.kill(storage.pid, signal.SIGKILL)
    text = "storage's process cannot be started again: storage.url: nobody answers"

    def tries() -> list[float]:
        return [record.created for record in caplog.records if text in record.getMessage()]

    wait_until(lambda: len(tries()) >= 3)
    first, second, third = tries()[:3]
    assert second - first > 0.4 and third - second > 0.8
    assert storage.pid is None
    assert storage.values()["process_up"] == 0
    assert storage.write([key(1)], views(arena, [0])) == [Failed("its process is being started again")]
    wild.fault()
    wait_until(lambda: up(storage, arena))
    assert isinstance(storage.write([key(1)], views(arena, [0]))[0], Done)


PARENT = """
import sys, time
from pathlib import Path
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.config import Chosen, Origin
from stepwell.engine.apart.client import ApartStorage
from stepwell.engine.making import Place
from stepwell.engine.parts import attach_storage
from stepwell.offers import Offer

choice = Chosen("storage", Offer("memory", MemoryStorage, MemoryConfig), MemoryConfig(), Origin("test"))
storage = ApartStorage(choice, Place("memory", "cpu", Path), limit_s=9.0)
print(storage.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_the_engine_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
        wait_until(lambda: not running(pid))


# --- close -------------------------------------------------------------------------------------------------------


def test_closing_closes_the_storage_and_ends_the_process(wild: Wild, arena: Arena) -> None:
    storage = wild.make()
    storage.attach(arena)
    pid = storage.pid
    storage.close()
    assert (wild.folder / "closed").read_text() == str(pid)
    assert not running(pid)
    assert storage.read([key(1)], views(arena, [0])) == [Failed("its process is closed")]
    storage.close()
    with pytest.raises(Lost, match="its process is closed"):
        storage.contains([key(1)])


@pytest.mark.parametrize("fault", ["hang", "gil", "stop"])
def test_closing_is_bounded(wild: Wild, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(client, "CLOSE_S", 0.5)
    storage = wild.make()
    pid = storage.pid
    wild.fault(f"{fault} close")
    began = time.monotonic()
    storage.close()
    assert time.monotonic() - began < 8
    assert not running(pid)


def test_closing_says_what_went_wrong_and_is_done_all_the_same(wild: Wild) -> None:
    storage = wild.make()
    pid = storage.pid
    wild.fault("raise close")
    with pytest.raises(StorageError, match="the cable fell out"):
        storage.close()
    assert not running(pid)


def test_closing_while_it_is_being_started_again(wild: Wild) -> None:
    storage = wild.make()
    first = wild.pid()
    wild.fault("hang make")
    os.kill(first, signal.SIGKILL)
    time.sleep(0.6)
    began = time.monotonic()
    storage.close()
    assert time.monotonic() - began < 8
    assert not [line for line in _children() if "stepwell.engine.apart" in line]


def test_nothing_is_left_open(wild: Wild, arena: Arena) -> None:
    def open_now() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts

    before, threads = open_now(), threading.active_count()
    for _ in range(3):
        storage = wild.make()
        storage.attach(arena)
        storage.contains([key(1)])
        os.kill(storage.pid, signal.SIGKILL)
        wait_until(lambda: up(storage, arena))  # noqa: B023 - called at once
        storage.close()
    wait_until(lambda: open_now() <= before and threading.active_count() <= threads)


def _children() -> list[str]:
    """Command lines of this process's children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rsplit(") ", 1)[1].split()[1]) == os.getpid():
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
    return found
