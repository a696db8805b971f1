"""Servers that are killed, frozen, full, or hold something else."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

from stepwell import DONE, MISSING, Failed
from stepwell_redis.store import RedisStorage
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server
from stepwell_testkit.serving import under_fault

PAGE = 64 * 1024
Serve = Callable[..., Server]
Open = Callable[..., RedisStorage]


def client(server: Server) -> redis.Redis:
    return redis.Redis(port=server.port, socket_timeout=5)


def failed(results: object) -> bool:
    return all(isinstance(result, Failed) for result in results)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", [512, PAGE, 1 << 20])
def test_a_frozen_server_costs_its_timeout_and_no_restart(serve: Serve, opened: Open, page: int) -> None:
    server = serve()
    bench = Bench(opened(server.port), page, 16)
    bench.put(range(8))
    server.freeze()
    try:
        for call in (lambda: bench.read(range(8))[0], lambda: bench.write(range(8, 16))):
            began = time.monotonic()
            results = call()
            assert failed(results) and "timed out" in results[0].reason.replace("Timeout", "timed out")
            assert time.monotonic() - began < 2.0
        began = time.monotonic()
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            bench.storage.contains(bench.keys(range(8)))
        with pytest.raises(redis.RedisError):
            bench.storage.delete(bench.keys([99]))
        assert time.monotonic() - began < 3.0
    finally:
        server.thaw()
    bench.gets(range(8))
    bench.put(range(8, 16))
    bench.gets(range(16))


def test_a_killed_server_fails_at_once_and_comes_back_without_a_restart(serve: Serve, opened: Open) -> None:
    server = serve()
    bench = Bench(opened(server.port), PAGE, 16)
    bench.put(range(8))
    server.kill()
    began = time.monotonic()
    assert failed(bench.read(range(8))[0]) and failed(bench.write(range(8)))
    assert time.monotonic() - began < 1.0
    server.start()
    bench.lacks(range(8))
    bench.put(range(8))
    bench.gets(range(8))


def test_a_server_killed_in_the_middle_of_batches_leaves_no_wrong_bytes(serve: Serve, opened: Open) -> None:
    server = serve("--appendonly", "yes", "--appendfsync", "no")
    store = opened(server.port)
    over = threading.Event()
    wrong: list[str] = []

    def work(worker: int) -> None:
        bench = Bench(store, 1 << 20, 8, f"worker {worker}")
        while not over.is_set():
            bench.write(range(8))
            results, pages = bench.read(range(8))
            for number, (result, page) in enumerate(zip(results, pages, strict=True)):
                if result == DONE and page != bench.bytes_of(number):
                    wrong.append(f"page {number} of worker {worker}")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        time.sleep(0.15)
        server.restart()
    over.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    after = Bench(store, 1 << 20, 8, "worker 0")
    after.put(range(8))
    after.gets(range(8))


def test_b083_b088_a_full_server_fails_single_pages_and_they_stay_missing(serve: Serve, opened: Open) -> None:
    server = serve("--maxmemory", "16mb", "--maxmemory-policy", "noeviction")
    bench = Bench(opened(server.port), 1 << 20, 32)
    bench.put([3])
    results = bench.write(range(32))
    done = [result == DONE for result in results]
    assert any(done) and not all(done)
    assert all("OOM" in result.reason for result in results if isinstance(result, Failed))
    assert done[:4] == [True] * 4
    assert bench.found(range(32)) == done
    bench.storage.delete(bench.keys(range(0, 32, 2)))
    again = bench.write([31, 29])
    assert again == [DONE, DONE]
    bench.gets([29, 31])


def test_a_server_that_is_full_at_the_start_is_spoken_of(
    serve: Serve, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    opened(serve("--maxmemory", "16mb", "--maxmemory-policy", "noeviction").port)
    assert "allkeys-lru" in caplog.text
    caplog.clear()
    opened(serve("--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru").port)
    assert not caplog.text


@pytest.mark.parametrize("page", [256, PAGE])
def test_b057_a_value_that_is_no_page_of_this_size_fails_alone_until_it_is_written(
    serve: Serve, opened: Open, name_of: Callable[[bytes], bytes], page: int
) -> None:
    server = serve()
    bench = Bench(opened(server.port), page, 8)
    bench.put(range(8))
    others = client(server)
    for number, value in ((1, b""), (2, b"x"), (3, bytes(page - 1)), (4, bytes(page + 1)), (5, bytes(4 * page))):
        others.set(name_of(bench.key(number)), value)
    others.delete(name_of(bench.key(6)))
    others.lpush(name_of(bench.key(6)), "a list")
    results, pages = bench.read(range(8))
    assert [result == DONE for result in results] == [True] + [False] * 6 + [True]
    assert "1 bytes" in results[2].reason  # type: ignore[union-attr]
    assert [result == MISSING for result in results] == [False] * 6 + [True, False]
    assert pages[0] == bench.bytes_of(0) and pages[7] == bench.bytes_of(7)
    bench.put(range(8))
    bench.gets(range(8))


REPLIES = {
    "no number": b"*8\r\n$abc\r\n",
    "below zero": b"*8\r\n$-7\r\n" * 9,
    "endless": b"*8\r\n$99999999999\r\n",
    "another shape": b"*3\r\n$1\r\nx\r\n",
    "cut": b"*8\r\n$65536\r\nx",
}


@pytest.mark.parametrize("reply", REPLIES)
def test_replies_that_make_no_sense_fail_the_batch_and_end(
    serve: Serve, opened: Open, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    """The server is replaced by one that answers the same to everything, and comes back."""
    monkeypatch.setattr("stepwell_redis.wire.LONGEST_S", 0.5)
    server = serve()
    bench = Bench(opened(server.port), PAGE, 8)
    bench.put(range(8))
    server.kill()
    with socket.create_server(("127.0.0.1", server.port)) as listening:

        def answer(to: socket.socket) -> None:
            with to, suppress(OSError):
                while b"MGET" not in (asked := to.recv(1 << 16)) and b"EXISTS" not in asked:
                    to.sendall(b"+OK\r\n" * asked.count(b"SETINFO"))
                to.sendall(REPLIES[reply])
                while reply == "endless":
                    to.sendall(bytes(1024))
                    time.sleep(0.01)
                while to.recv(1 << 16):
                    pass

        def talk() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=talk, daemon=True).start()
        began = time.monotonic()
        assert failed(bench.read(range(8))[0])
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            bench.storage.contains(bench.keys(range(8)))
        assert time.monotonic() - began < 3.0
        listening.shutdown(socket.SHUT_RDWR)
    server.start()
    bench.put(range(8))
    bench.gets(range(8))


def test_pages_leave_after_their_time_and_reading_may_prolong_it(serve: Serve, opened: Open) -> None:
    port = serve().port
    plain = Bench(opened(port, ttl_s=0.4, prefix="a/"), PAGE, 4)
    kept = Bench(opened(port, ttl_s=0.4, refresh_on_read=True, prefix="b/"), PAGE, 4)
    plain.put(range(4))
    kept.put(range(4))
    for _ in range(6):
        time.sleep(0.1)
        kept.gets(range(4))
    plain.lacks(range(4))
    time.sleep(0.6)
    kept.lacks(range(4))


def test_pages_outlive_a_server_that_keeps_a_log(serve: Serve, opened: Open) -> None:
    server = serve("--appendonly", "yes", "--appendfsync", "always")
    bench = Bench(opened(server.port), PAGE, 32)
    bench.put(range(32))
    bench.storage.delete(bench.keys([5]))
    server.restart()
    bench.lacks([5])
    bench.gets([number for number in range(32) if number != 5])


def test_more_callers_than_connections_wait_for_each_other(serve: Serve, opened: Open) -> None:
    server = serve()
    store = opened(server.port, connections=2, timeout_s=10.0)
    broken: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            bench = Bench(store, PAGE, 8, f"worker {worker}")
            for _ in range(10):
                bench.put(range(8))
                bench.gets(range(8))
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not broken
    assert client(server).info("clients")["connected_clients"] <= 3  # type: ignore[index]


def test_closing_twice_is_once(serve: Serve, opened: Open) -> None:
    server = serve()
    store = opened(server.port)
    server.freeze()
    began = time.monotonic()
    store.close()
    store.close()
    assert time.monotonic() - began < 1.0
    server.thaw()


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_serving_goes_on_without_the_server(serve: Serve, fault: str) -> None:
    server = serve()

    def mend() -> None:
        with suppress(ProcessLookupError):
            server.thaw() if fault == "freeze" else server.start()

    table = {"use": "redis", "url": f"redis://127.0.0.1:{server.port}/0", "timeout_s": 0.5}
    report = under_fault(table, server.freeze if fault == "freeze" else server.kill, mend, before_s=1.0, during_s=2.5)
    report.check()
