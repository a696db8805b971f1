"""A master or the process with the segment is killed while calls are under way, and while an engine serves."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stepwell import DONE, Failed, PageResult, Sampling
from stepwell.assemble import Assembly
from stepwell.cache.keys import namespace, page_digests
from stepwell.config import Config, environment
from stepwell.engine.local import LocalEngine
from stepwell.engine.messages import Output
from stepwell.schedule.request import Request
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server
from stepwell_testkit.serving import SERVING, under_fault

PAGE = 64 * 1024
Open = Callable[..., MooncakeStorage]


def table(master: Server) -> dict[str, object]:
    at = {"master": f"127.0.0.1:{master.ports[0]}", "metrics": f"127.0.0.1:{master.ports[1]}"}
    return {"use": "mooncake", **at, "rpc_timeout_s": 0.5, "transfer_timeout_s": 1.0}


@pytest.fixture
def both(own_master: Server, own_owner: Server) -> dict[str, Server]:
    return {"master": own_master, "owner": own_owner}


class TestKilled:
    @pytest.mark.parametrize("who", ["master", "owner"])
    def test_under_way_it_costs_pages_and_bounded_time(
        self, both: dict[str, Server], opened: Open, settled: Open, who: str
    ) -> None:
        """A thread for each kind of call makes it over and over; the one that reads looks at each byte."""
        store = settled(both["master"], opened(both["master"]))
        bench = Bench(store, PAGE, 48)
        bench.put(range(16))
        over = threading.Event()
        longest: dict[str, float] = {}
        kinds: set[type[PageResult]] = set()
        wrong: list[int] = []

        def read() -> None:
            results, pages = bench.read(range(16), range(16))
            kinds.update(type(result) for result in results)
            wrong.extend(at for at in range(16) if results[at] == DONE and pages[at] != bench.bytes_of(at))

        calls: dict[str, Callable[[], object]] = {
            "read": read,
            "write": lambda: bench.write(range(100, 116), range(16, 32)),
            "contains": lambda: store.contains(bench.keys(range(16))),
            "delete": lambda: store.delete(bench.keys(range(100, 116))),
        }

        def work(name: str) -> None:
            while not over.is_set():
                began = time.monotonic()
                with suppress(ConnectionError):
                    calls[name]()
                longest[name] = max(longest.get(name, 0.0), time.monotonic() - began)
                time.sleep(0.002)

        threads = [threading.Thread(target=work, args=(name,)) for name in calls]
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
        assert len(kinds) > 1, "nobody noticed"
        assert max(longest.values()) < 5.0, f"calls took {longest}"
        settled(both["master"], store)

    def test_a_dead_master_holds_no_thread_up(self, both: dict[str, Server], opened: Open, settled: Open) -> None:
        """The client alone takes 4.3 s a call."""
        bench = Bench(settled(both["master"], opened(both["master"])), PAGE, 8)
        bench.put(range(8))
        both["master"].kill()
        began = time.monotonic()
        for _ in range(20):
            assert all(isinstance(result, Failed) for result in bench.read(range(8))[0])
            assert all(isinstance(result, Failed) for result in bench.write(range(8)))
            with pytest.raises(ConnectionError):
                bench.storage.contains(bench.keys(range(8)))
        assert time.monotonic() - began < 1.0
        both["master"].start()
        settled(both["master"], bench.storage)
        bench.lacks(range(8))
        bench.storage.close()
        both["master"].kill()
        both["master"].start()


class TestServing:
    @pytest.mark.parametrize("who", ["master", "owner"])
    def test_an_engine_serves_on_and_finds_the_store_again(
        self, both: dict[str, Server], opened: Open, settled: Open, who: str
    ) -> None:
        settled(both["master"], opened(both["master"]))
        report = under_fault(table(both["master"]), both[who].kill, both[who].start, before_s=1.0, during_s=2.0)
        report.check()

    def test_an_engine_started_anew_finds_the_pages_of_the_last(
        self, both: dict[str, Server], opened: Open, settled: Open, tmp_path: Path
    ) -> None:
        settled(both["master"], opened(both["master"]))
        tokens = np.arange(256, dtype=np.int32) % 256
        said = [ask_once(table(both["master"]), tmp_path / str(turn), tokens) for turn in range(2)]
        assert [cached for _, cached in said] == [0, 240]
        assert said[0][0] == said[1][0]


def ask_once(storage: dict[str, object], folder: Path, tokens: npt.NDArray[np.int32]) -> tuple[list[int], int]:
    """What an engine of its own says to a prompt, and how many tokens of it came from storage."""
    folder.mkdir()
    extra = {**SERVING, "engine.state_dir": str(folder), "storage": storage, "engine.drain_s": 5.0}
    config = Config.load(None, environment(), extra=extra)
    engine = LocalEngine(Assembly(config, config.load_plugins()).parts)
    try:
        space = namespace(dict(engine.hello.namespace))
        request = Request(
            rid="one",
            namespace=space,
            tokens=tokens.tobytes(),
            digests=page_digests(space, tokens.tobytes(), engine.hello.page_size),
            sampling=Sampling(max_tokens=4, ignore_eos=True),
        )
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        engine.submit(request, outputs.put)
        said: list[int] = []
        while True:
            output = outputs.get(timeout=20)
            said += output.tokens
            if output.finish is not None:
                time.sleep(0.5)
                return said, output.cached.storage
    finally:
        engine.close()
