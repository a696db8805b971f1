"""A master or the process with the segment is killed while calls are under way, and while an engine serves."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from stepwell import DONE, Failed, Missing, PageResult
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server
from stepwell_testkit.serving import under_fault

PAGE = 64 * 1024
Open = Callable[..., MooncakeStorage]


def table(master: Server) -> dict[str, object]:
    at = {"master": f"127.0.0.1:{master.ports[0]}", "metrics": f"127.0.0.1:{master.ports[1]}"}
    return {"use": "mooncake", **at, "rpc_timeout_s": 0.5, "transfer_timeout_s": 1.0}


@pytest.fixture
def both(own_master: Server, own_owner: Server) -> dict[str, Server]:
    return {"master": own_master, "owner": own_owner}


def until(works: Callable[[], bool], within_s: float, what: str) -> None:
    ends = time.monotonic() + within_s
    while not works():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def done(results: object) -> bool:
    return all(result == DONE for result in results)  # type: ignore[attr-defined]


class TestKilled:
    @pytest.mark.parametrize("who", ["master", "owner"])
    @pytest.mark.parametrize("call", ["contains", "read", "write", "delete"])
    def test_in_a_call_it_costs_pages_and_bounded_time(
        self, both: dict[str, Server], opened: Open, who: str, call: str
    ) -> None:
        """Two threads make one kind of call, over and over, and another one reads and looks at each byte."""
        store = opened(both["master"])
        until(lambda: done(Bench(store, PAGE, 8).write(range(8))), 10, "the store is not ready")
        bench = Bench(store, PAGE, 48)
        bench.put(range(16))
        over = threading.Event()
        longest = [0.0] * 3
        wrong: list[str] = []
        kinds: set[type[PageResult]] = set()
        keys, views = bench.keys(range(16)), [bench.arena.views(range(at, at + 16)) for at in (0, 16, 32)]
        asks: dict[str, Callable[[int], object]] = {
            "contains": lambda at: store.contains(keys),
            "read": lambda at: store.read(keys, views[at]),
            "write": lambda at: store.write(bench.keys(range(100 * at + 100, 100 * at + 116)), views[at]),
            "delete": lambda at: store.delete(bench.keys(range(500, 516))),
        }

        def work(at: int) -> None:
            while not over.is_set():
                began = time.monotonic()
                if at == 2:
                    results, pages = bench.read(range(16), range(32, 48))
                    kinds.update(type(result) for result in results)
                    for number, (result, page) in enumerate(zip(results, pages, strict=True)):
                        if result == DONE and page != bench.bytes_of(number):
                            wrong.append(f"page {number}")
                else:
                    with suppress(ConnectionError):
                        asks[call](at)
                longest[at] = max(longest[at], time.monotonic() - began)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        both[who].kill()
        time.sleep(1.0)
        both[who].start()
        time.sleep(0.2)
        over.set()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert kinds - {type(DONE)} <= {Failed, Missing} and len(kinds) > 1, "nobody noticed"
        assert max(longest) < 5.0, f"a call took {max(longest):.1f} s"
        until(lambda: done(bench.write(range(16))) and done(bench.read(range(16))[0]), 10, "it does not come back")
        bench.gets(range(16))

    def test_a_dead_master_holds_no_thread_up(self, both: dict[str, Server], opened: Open) -> None:
        """The client alone takes 4.3 s a call."""
        bench = Bench(opened(both["master"]), PAGE, 8)
        until(lambda: done(bench.write(range(8))), 10, "the store is not ready")
        both["master"].kill()
        began = time.monotonic()
        for _ in range(20):
            assert all(isinstance(result, Failed) for result in bench.read(range(8))[0])
            assert all(isinstance(result, Failed) for result in bench.write(range(8)))
            with pytest.raises(ConnectionError):
                bench.storage.contains(bench.keys(range(8)))
        assert time.monotonic() - began < 1.0
        both["master"].start()
        until(lambda: done(bench.write(range(100, 108))), 10, "it does not come back")
        bench.lacks(range(8))
        bench.storage.close()
        both["master"].kill()
        both["master"].start()


class TestServing:
    @pytest.mark.parametrize("who", ["master", "owner"])
    def test_an_engine_serves_on_and_finds_the_store_again(
        self, both: dict[str, Server], opened: Open, who: str
    ) -> None:
        bench = Bench(opened(both["master"]), PAGE, 8)
        until(lambda: done(bench.write(range(8))), 10, "the store is not ready")
        report = under_fault(table(both["master"]), both[who].kill, both[who].start)
        print(report)
        report.check()

    def test_an_engine_started_anew_finds_the_pages_of_the_last(self, both: dict[str, Server], opened: Open) -> None:
        bench = Bench(opened(both["master"]), PAGE, 8)
        until(lambda: done(bench.write(range(8))), 10, "the store is not ready")
