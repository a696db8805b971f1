"""What lies in the server: names, listing, what others keep there; the client alone; the cost of our own code."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from stepwell import DONE, MISSING, StepwellError
from stepwell_redis import RedisConfig, stepwell_storages
from stepwell_redis.store import WINDOW, RedisStorage
from stepwell_testkit import KitContext
from stepwell_testkit.arena import KitArena
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server

Serve = Callable[..., Server]
Open = Callable[..., RedisStorage]


def test_a_scan_lists_each_page_once_and_nothing_of_others(serve: Serve, opened: Open) -> None:
    server = serve()
    odd = "we[i*r?d]\\^-"
    store, plain = opened(server.port, prefix=odd), opened(server.port)
    bench, other = Bench(store, 512, 2500), Bench(plain, 300, 4)
    for start in range(0, 2500, 500):
        bench.put(range(start, start + 500))
    other.put(range(4))
    strange = redis.Redis(port=server.port)
    strange.set("weird", "x")
    strange.set(f"{odd}short", "x")
    strange.set(f"{odd}{'z' * 80}", "x")
    strange.set(f"{odd}{'a' * 82}", "x")
    strange.lpush(f"{odd}{'b' * 80}", "x")
    listed = [page for part in store.scan() for page in part]
    assert sorted(page.key for page in listed) == sorted(bench.keys(range(2500)))
    assert {page.nbytes for page in listed} == {512}
    assert {page.nbytes for part in plain.scan() for page in part} == {300}
    store.delete([page.key for page in listed])
    assert not [page for part in store.scan() for page in part]
    assert strange.dbsize() == 4 + 5


def test_b057_pages_come_and_go_during_a_scan(serve: Serve, opened: Open) -> None:
    store = opened(serve().port)
    bench = Bench(store, 256, 2000)
    bench.put(range(2000))
    parts = store.scan()
    seen = [*next(parts)]
    store.delete(bench.keys(range(1000, 2000)))
    seen += [page for part in parts for page in part]
    keys = [page.key for page in seen]
    assert len(set(keys)) == len(keys)
    assert set(bench.keys(range(1000))) <= set(keys)


def test_names_are_readable_and_other_databases_are_others(serve: Serve, opened: Open) -> None:
    server = serve()
    zero, one = opened(server.port), opened(url=f"redis://127.0.0.1:{server.port}/1")
    Bench(zero, 512, 1, "s").put([1])
    Bench(one, 512, 1, "s").lacks([1])
    key = Bench(zero, 512, 1, "s").key(1)
    assert redis.Redis(port=server.port).keys() == [f"stepwell/{key.hex()}".encode()]


def test_b088_b074_results_are_one_a_page_beyond_a_window(serve: Serve, opened: Open) -> None:
    bench = Bench(opened(serve().port), 4096, 700)
    bench.put([number for number in range(700) if number % 3])
    results, pages = bench.read(range(700))
    for number, (result, page) in enumerate(zip(results, pages, strict=True)):
        assert result == (DONE if number % 3 else MISSING)
        assert result == MISSING or page == bench.bytes_of(number)


@pytest.mark.parametrize("page", [4096, 64 * 1024, 1 << 20])
def test_the_client_alone_moves_pages_and_leaves_none(serve: Serve, tmp_path: Path, page: int) -> None:
    server = serve()
    [offer] = stepwell_storages()
    assert offer.native is not None
    arena = KitArena(page, 8)
    native = offer.native(RedisConfig(f"redis://127.0.0.1:{server.port}/0"), KitContext(tmp_path), arena)
    keys = [bytes([slot]) * 40 for slot in range(4)]
    for slot in range(4):
        arena.fill(slot, bytes([slot + 1]) * page)
    native.put(keys, arena.views(range(4)))
    native.get(keys[::-1], arena.views(range(4, 8)))
    assert [arena.page(slot) for slot in range(4, 8)] == [bytes([at]) * page for at in (4, 3, 2, 1)]
    native.close()
    assert redis.Redis(port=server.port).dbsize() == 0


def test_the_client_alone_says_that_the_server_dropped_pages(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    [offer] = stepwell_storages()
    assert offer.native is not None
    arena = KitArena(4096, 4)
    native = offer.native(RedisConfig(f"redis://127.0.0.1:{server.port}/0"), KitContext(tmp_path), arena)
    keys = [bytes([slot]) * 40 for slot in range(4)]
    native.put(keys, arena.views(range(4)))
    redis.Redis(port=server.port).delete(keys[1], keys[3])
    with pytest.raises(StepwellError, match="dropped 2 of 4 pages that the round had put; it needs room for 2 x --mib"):
        native.get(keys, arena.views(range(4)))
    native.close()


def test_a_bench_on_a_server_that_has_too_little_room_ends_with_a_sentence(serve: Serve) -> None:
    server = serve("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    argv = [sys.executable, "-m", "stepwell", "storage", "bench", "--backend", "redis", "--mib", "16", "--rounds", "1"]
    sets = ["--set", f"storage.url=redis://127.0.0.1:{server.port}/0"]
    done = subprocess.run([*argv, *sets], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"dropped \d+ of \d+ pages that the round had put; it needs room for 2 x --mib", done.stderr)


class _Answers:
    """A connection and its socket: takes commands and has the answers ready."""

    def __init__(self, answers: bytes) -> None:
        self._sock = self
        self._answers, self._at = memoryview(answers), 0

    def get_connection(self) -> "_Answers":
        self._at = 0
        return self

    def release(self, _: object) -> None:
        pass

    def disconnect(self) -> None:
        pass

    def sendall(self, _: bytes) -> None:
        pass

    def recv_into(self, buffer: memoryview) -> int:
        part = self._answers[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def test_our_own_code_costs_little_a_page(serve: Serve, opened: Open) -> None:
    """Two microseconds on an idle machine; the limit here is what a busy one may make of them."""
    store = opened(serve().port)
    count, page = 4096, 256
    arena = KitArena(page, count)
    keys = [number.to_bytes(40, "big") for number in range(count)]
    views = arena.views(range(count))
    window = WINDOW // page
    some = b"*%d\r\n" % window + b"$%d\r\n%b\r\n" % (page, bytes(page)) * window
    calls = {
        "read": (lambda: store.read(keys, views), some * (count // window)),
        "write": (lambda: store.write(keys, views), b"+OK\r\n" * count),
        "contains": (lambda: store.contains(keys), b":1\r\n" * count),
    }
    spent = {}
    for name, (call, answer) in calls.items():
        store._pool = _Answers(answer)  # type: ignore[assignment]
        took = []
        for _ in range(7):
            began = time.thread_time()
            results = call()
            took.append(time.thread_time() - began)
            assert len(results) == count and set(results) <= {DONE, True}
        spent[name] = min(took) / count * 1e6
    print({name: f"{us:.2f} us a page" for name, us in spent.items()})
    assert max(spent.values()) < 5.0, spent
