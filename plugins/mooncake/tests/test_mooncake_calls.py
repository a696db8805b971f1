"""What the client is asked, and what is made of its answers: with a client that records and answers as it is told."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from stepwell import DONE, MISSING, ConfigError, Failed, PageViews
from stepwell_mooncake import MooncakeConfig
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit import KitArena, KitContext

PAGE = 4096
Answer = Callable[[str, list[str]], list[int]]


class Told:
    """A client that answers what `answer` says."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.answer: Answer = lambda call, names: [{"get": PAGE, "put": 0, "exist": 1, "remove": 0}[call]] * len(names)

    def register_buffer(self, ptr: int, size: int) -> int:
        self.calls.append(("register", ptr, size))
        return 0

    def unregister_buffer(self, ptr: int) -> int:
        self.calls.append(("unregister", ptr))
        return 0

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return self._say("exist", keys)

    def batch_get_into(self, keys: list[str], ptrs: list[int], sizes: list[int]) -> list[int]:
        return self._say("get", keys, ptrs, sizes)

    def batch_put_from(self, keys: list[str], ptrs: list[int], sizes: list[int], how: object) -> list[int]:
        return self._say("put", keys, ptrs, sizes)

    def batch_get_into_multi_buffers(self, keys: list[str], ptrs: list[list[int]], sizes: list[list[int]]) -> list[int]:
        return self._say("get", keys, ptrs, sizes)

    def batch_put_from_multi_buffers(
        self, keys: list[str], ptrs: list[list[int]], sizes: list[list[int]], how: object
    ) -> list[int]:
        return self._say("put", keys, ptrs, sizes)

    def get_size(self, key: str) -> int:
        self.calls.append(("size", key))
        return 3 * PAGE

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        return self._say("remove", keys, force)

    def close(self) -> int:
        self.calls.append(("close",))
        return 0

    def _say(self, call: str, names: list[str], *more: object) -> list[int]:
        self.calls.append((call, names, *more))
        return self.answer(call, names)

    def count(self, call: str) -> int:
        return sum(made[0] == call for made in self.calls)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody listens there."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


@pytest.fixture
def storage(told: Told, port: int, context: KitContext) -> Iterator[MooncakeStorage]:
    config = MooncakeConfig(f"127.0.0.1:{port}", space_retries=3, space_pause_s=0.005)
    storage = MooncakeStorage(config, context, told, "how")
    yield storage
    storage.close()


@pytest.fixture
def arena() -> KitArena:
    return KitArena(PAGE, 16)


def keys(count: int) -> list[bytes]:
    return [bytes([number]) * 40 for number in range(count)]


def test_the_arena_is_registered_whole_and_pages_move_by_address(
    storage: MooncakeStorage, told: Told, arena: KitArena
) -> None:
    """Over tcp the client moves memory that nobody registered too; over RDMA it does not."""
    storage.attach(arena)
    assert told.calls == [("register", arena.address, arena.nbytes)]
    assert storage.write(keys(2), arena.views([3, 1])) == [DONE, DONE]
    assert storage.read(keys(2), arena.views([5, 0])) == [DONE, DONE]
    names = ["stepwell/" + key.hex() for key in keys(2)]
    at = [arena.address + slot * arena.stride for slot in range(16)]
    assert told.calls[1:] == [
        ("put", names, [at[3], at[1]], [PAGE, PAGE]),
        ("get", names, [at[5], at[0]], [PAGE, PAGE]),
    ]
    other = KitArena(PAGE, 2)
    storage.attach(other)
    assert told.calls[3:] == [("unregister", arena.address), ("register", other.address, other.nbytes)]
    storage.close()
    assert told.calls[5:] == [("unregister", other.address), ("close",)]


def test_memory_that_cannot_be_registered_is_a_sentence(storage: MooncakeStorage, told: Told, arena: KitArena) -> None:
    told.register_buffer = lambda ptr, size: -600  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"storage.protocol: Mooncake cannot register .*ulimit -l"):
        storage.attach(arena)


def test_only_a_one_says_that_a_page_is_there(storage: MooncakeStorage, told: Told) -> None:
    told.answer = lambda call, names: [1, 0, -1, -704, -900, 2]
    assert storage.contains(keys(6)) == [True, False, False, False, False, False]


def test_a_question_that_failed_whole_is_an_error(storage: MooncakeStorage, told: Told) -> None:
    told.answer = lambda call, names: [-800] * len(names)
    with pytest.raises(ConnectionError, match="the transfer failed"):
        storage.contains(keys(2))


@pytest.mark.parametrize("code", [PAGE - 1, PAGE + 1, 1, 0, -600, -800, -1, -901])
def test_a_read_that_is_not_of_a_whole_page_is_never_done(
    storage: MooncakeStorage, told: Told, arena: KitArena, code: int
) -> None:
    told.answer = lambda call, names: [0] * len(names) if call == "remove" else [PAGE, code, -704, -703][: len(names)]
    results = storage.read(keys(4), arena.views(range(4)))
    assert results[0] == DONE and results[2:] == [MISSING, MISSING]
    assert isinstance(results[1], Failed)


@pytest.mark.parametrize(("code", "removed"), [(PAGE - 1, True), (-600, True), (-801, True), (-800, False)])
def test_a_page_that_can_never_be_read_makes_room_for_a_good_one(
    storage: MooncakeStorage, told: Told, arena: KitArena, code: int, removed: bool
) -> None:
    """A write to a key that is there changes nothing, so a bad page would stay for ever."""
    told.answer = lambda call, names: [0] * len(names) if call == "remove" else [code] * len(names)
    storage.read(keys(1), arena.views([0]))
    name = "stepwell/" + keys(1)[0].hex()
    assert [made for made in told.calls if made[0] == "remove"] == [("remove", [name], True)] * removed


@pytest.mark.parametrize(("second", "result"), [(PAGE, DONE), (-704, MISSING)])
def test_a_page_torn_by_a_removal_is_looked_at_again(
    storage: MooncakeStorage, told: Told, arena: KitArena, second: int, result: object
) -> None:
    answers = iter([[PAGE, -801], [second]])
    told.answer = lambda call, names: next(answers)
    assert storage.read(keys(2), arena.views([4, 7])) == [DONE, result]
    assert told.calls[1] == ("get", ["stepwell/" + keys(2)[1].hex()], [arena.address + 7 * PAGE], [PAGE])


def test_a_key_that_comes_twice_is_moved_once_and_fills_both(
    storage: MooncakeStorage, told: Told, arena: KitArena
) -> None:
    """The client itself fills one of the two and claims both."""
    one, two = keys(2)

    def get(names: list[str], ptrs: list[int], sizes: list[int]) -> list[int]:
        told.calls.append(("get", names))
        for name, ptr in zip(names, ptrs, strict=True):
            arena.fill((ptr - arena.address) // PAGE, bytes([int(name[-2:], 16) + 1]) * PAGE)
        return [PAGE] * len(names)

    told.batch_get_into = get  # type: ignore[method-assign]
    assert storage.read([one, two, one], arena.views([2, 3, 4])) == [DONE] * 3
    assert [arena.page(slot)[:1] for slot in (2, 3, 4)] == [b"\1", b"\2", b"\1"]
    assert storage.write([one, two, one], arena.views([2, 3, 4])) == [DONE] * 3
    assert [len(made[1]) for made in told.calls] == [2, 2]  # type: ignore[arg-type]


def test_pages_of_several_segments_are_one_object(storage: MooncakeStorage, told: Told, arena: KitArena) -> None:
    at = arena.address
    addresses = np.array([[at, at + 8 * PAGE], [at + PAGE, at + 9 * PAGE]], dtype=np.int64)
    views = PageViews(addresses, np.array([PAGE // 2, PAGE // 2], dtype=np.int64), arena.memory, at)
    assert storage.write(keys(2), views) == storage.read(keys(2), views) == [DONE, DONE]
    assert told.calls[0][2:] == told.calls[1][2:] == (addresses.tolist(), [[PAGE // 2, PAGE // 2]] * 2)


def test_b088_a_page_that_is_there_or_fails_concerns_no_other(
    storage: MooncakeStorage, told: Told, arena: KitArena
) -> None:
    told.answer = lambda call, names: [0, 0, 0, -705, 0, 0, -800, 0]
    results = storage.write(keys(8), arena.views(range(8)))
    assert [result == DONE for result in results] == [True] * 6 + [False, True]
    assert results[6] == Failed(f"{storage._config.master}: the transfer failed (-800)")


def test_room_is_waited_for_with_a_bound(storage: MooncakeStorage, told: Told, arena: KitArena) -> None:
    answers = iter([[0, -200, -200], [0, -200], [0]])
    told.answer = lambda call, names: next(answers)
    assert storage.write(keys(3), arena.views(range(3))) == [DONE] * 3
    assert [len(made[1]) for made in told.calls] == [3, 2, 1]  # type: ignore[arg-type]
    told.calls.clear()
    told.answer = lambda call, names: [-200] * len(names)
    assert all(isinstance(result, Failed) for result in storage.write(keys(3), arena.views(range(3))))
    assert len(told.calls) == 4
    storage.write(keys(3), arena.views(range(3)))
    assert len(told.calls) == 5, "a full store is not waited for again at once"


def test_a_page_that_is_read_or_written_is_deleted_a_moment_later(storage: MooncakeStorage, told: Told) -> None:
    answers = iter([[-706, 0, -703], [-704, -703], [0]])
    told.answer = lambda call, names: next(answers)
    storage.delete(keys(3))
    assert [(len(made[1]), made[2]) for made in told.calls] == [(3, True), (2, True), (1, True)]  # type: ignore[arg-type]
    told.answer = lambda call, names: [-706] * len(names)
    with pytest.raises(ConnectionError, match=r"2 pages were not deleted: .* somebody reads it"):
        storage.delete(keys(2))
    told.answer = lambda call, names: [-703] * len(names)
    storage.delete(keys(2))  # written by others all the while: not there yet
    told.answer = lambda call, names: [-703, -706][: len(names)]
    with pytest.raises(ConnectionError, match=r"1 pages were not deleted: .* somebody reads it"):
        storage.delete(keys(2))


def test_nothing_is_called_after_close(storage: MooncakeStorage, told: Told, arena: KitArena) -> None:
    """The client would end the process."""
    storage.attach(arena)
    storage.close()
    before = list(told.calls)
    for call in (
        lambda: storage.contains(keys(1)),
        lambda: storage.read(keys(1), arena.views([0])),
        lambda: storage.write(keys(1), arena.views([0])),
        lambda: storage.delete(keys(1)),
        lambda: storage.attach(arena),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    storage.close()
    assert told.calls == before and told.count("close") == 1


def test_b092_close_waits_for_calls_under_way(storage: MooncakeStorage, told: Told, arena: KitArena) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(call: str, names: list[str]) -> list[int]:
        inside.set()
        go_on.wait(5)
        told.calls.append(("returned",))
        return [PAGE] * len(names)

    told.answer = slow
    results: list[object] = []
    reader = threading.Thread(target=lambda: results.extend(storage.read(keys(1), arena.views([0]))))
    reader.start()
    assert inside.wait(5)
    closer = threading.Thread(target=storage.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive() and told.count("close") == 0
    go_on.set()
    closer.join(5)
    reader.join(5)
    assert results == [DONE] and [made[0] for made in told.calls[-2:]] == ["returned", "close"]


def test_close_leaves_a_client_alone_that_never_comes_back(
    storage: MooncakeStorage, told: Told, arena: KitArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell_mooncake.store.CLOSE_S", 0.1)
    inside, go_on = threading.Event(), threading.Event()

    def slow(call: str, names: list[str]) -> list[int]:
        inside.set()
        go_on.wait(5)
        return [PAGE] * len(names)

    told.answer = slow
    reader = threading.Thread(target=lambda: storage.read(keys(1), arena.views([0])))
    reader.start()
    assert inside.wait(5)
    storage.close()
    go_on.set()
    reader.join(5)
    storage.close()
    assert told.count("close") == 0


def test_a_master_that_is_gone_is_not_waited_for(told: Told, context: KitContext, arena: KitArena) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        storage = MooncakeStorage(MooncakeConfig(f"127.0.0.1:{port}"), context, told, "how")
        assert storage.write(keys(1), arena.views([0])) == [DONE]
    told.answer = lambda call, names: [-900] * len(names)
    assert isinstance(storage.read(keys(1), arena.views([0]))[0], Failed)
    asked = len(told.calls)
    for _ in range(20):
        assert isinstance(storage.read(keys(1), arena.views([0]))[0], Failed)
        assert isinstance(storage.write(keys(1), arena.views([0]))[0], Failed)
        with pytest.raises(ConnectionError, match="the master does not answer"):
            storage.contains(keys(1))
        with pytest.raises(ConnectionError, match=r"1 pages were not deleted: .*the master does not answer"):
            storage.delete(keys(1))
    assert len(told.calls) == asked
    told.answer = lambda call, names: [PAGE] * len(names)
    with socket.create_server(("127.0.0.1", port)):
        time.sleep(0.6)
        assert storage.read(keys(1), arena.views([0])) == [DONE]
    storage.close()


def test_a_batch_costs_less_than_two_microseconds_a_page(storage: MooncakeStorage, told: Told) -> None:
    """Of our own: the client that answers here takes no time."""
    count = 4096
    arena = KitArena(PAGE, count)
    storage.attach(arena)
    names = [number.to_bytes(40, "big") for number in range(count)]
    views = arena.views(range(count))
    calls: Sequence[Callable[[], object]] = (
        lambda: storage.read(names, views),
        lambda: storage.write(names, views),
        lambda: storage.contains(names),
    )
    for call in calls:
        spent = []
        for _ in range(7):
            began = time.thread_time()
            call()
            spent.append(time.thread_time() - began)
        assert min(spent) / count < 2e-6, f"{min(spent) / count * 1e6:.2f} us a page"
