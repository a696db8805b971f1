"""What a real store keeps: beside others' objects, pinned, leased, checked, and offloaded to disk over a restart."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from stepwell import DONE, ConfigError, Failed
from stepwell_mooncake import MooncakeConfig, stepwell_storages
from stepwell_mooncake.store import MooncakeStorage
from stepwell_testkit import KitArena, KitContext
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server, free_port

PAGE = 4096
MIB = 1 << 20
Open = Callable[..., MooncakeStorage]
Serve = Callable[..., Server]


class Stranger(Protocol):
    """Somebody else at the store."""

    def get(self, name: str) -> bytes: ...
    def put(self, name: str, data: bytes | bytearray, *, pinned: bool = False) -> bool: ...
    def remove(self, names: list[str]) -> None: ...


def test_objects_of_others_are_not_listed_and_not_touched(
    master: Server, owner: Server, shared: Open, stranger: Callable[[Server], Stranger]
) -> None:
    bench = Bench(shared(master), PAGE, 4)
    bench.put(range(4))
    other = stranger(master)
    theirs = [
        "stepwell/short",
        "stepwell/" + "A" * 80,
        "stepwell/" + "a" * 82,
        "other/" + "a" * 80,
        "xstepwell/" + "a" * 80,
    ]
    for name in theirs:
        assert other.put(name, b"theirs")
    try:
        found = [page for batch in bench.storage.scan() for page in batch]
        assert sorted(page.key for page in found) == sorted(bench.keys(range(4)))
        assert {page.nbytes for page in found} == {PAGE}
        bench.storage.delete([page.key for page in found])
        bench.lacks(range(4))
        assert [other.get(name) for name in theirs] == [b"theirs"] * len(theirs)
    finally:
        other.remove(theirs)


def test_stores_with_different_prefixes_do_not_meet(master: Server, owner: Server, shared: Open) -> None:
    one, two = Bench(shared(master), PAGE, 2), Bench(shared(master, prefix="two."), PAGE, 2)
    one.put([1])
    assert two.storage.contains(one.keys([1])) == [False]
    assert [batch for batch in two.storage.scan() if batch] == []
    one.storage.delete(one.keys([1]))


def test_a_listing_without_the_admin_pages_is_a_sentence(master: Server, owner: Server, shared: Open) -> None:
    store = shared(master, metrics=f"127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match=r"storage.metrics: .* nobody answers there .*; name the address"):
        list(store.scan())
    store = shared(master, metrics=f"127.0.0.1:{master.port}")
    with pytest.raises(ConfigError, match=r"storage\.metrics: "):
        list(store.scan())


def test_a_page_of_another_size_fails_and_makes_room(
    master: Server, owner: Server, shared: Open, stranger: Callable[[Server], Stranger]
) -> None:
    bench = Bench(shared(master), PAGE, 4)
    other = stranger(master)
    for number, size in enumerate((PAGE // 2, PAGE * 2)):
        assert other.put("stepwell/" + bench.key(number).hex(), bytes(size))
    results, _ = bench.read([0, 1])
    assert all(isinstance(result, Failed) for result in results)
    bench.put([0, 1])
    bench.gets([0, 1])
    bench.storage.delete(bench.keys([0, 1]))


def test_soft_pins_reach_the_master(master: Server, owner: Server, shared: Open) -> None:
    for settings in ({"pin": "soft"}, {"pin": "soft", "soft_pin_ttl_s": 30.0}):
        bench = Bench(shared(master, **settings), PAGE, 2)
        bench.put([1])
        bench.gets([1])
        bench.storage.delete(bench.keys([1]))


def test_hard_pins_outlive_an_eviction_and_yield_to_deletion(forgetful: Server, shared: Open) -> None:
    pinned, others = Bench(shared(forgetful, pin="hard"), MIB, 2), Bench(shared(forgetful), MIB, 1)
    pinned.put([0, 1])
    for number in range(48):
        others.put([number])
    assert not all(others.storage.contains(others.keys(range(48))))
    pinned.gets([0, 1])
    pinned.storage.delete(pinned.keys([0, 1]))
    pinned.lacks([0, 1])
    others.storage.delete(others.keys(range(48)))


def test_more_than_there_is_room_for_fails_in_bounded_time(masters: Serve, owners: Serve, opened: Open) -> None:
    """Everything is leased to readers, so nothing can leave."""
    master = masters(lease_ms=60_000)
    owners(master, 16)
    bench = Bench(opened(master), MIB, 24)
    written = []
    for number in range(24):
        if isinstance(bench.write([number])[0], Failed):
            break
        if bench.found([number])[0]:  # it may have left before it was read
            written.append(number)
    assert 8 < len(written) < 24
    began = time.monotonic()
    assert "no space" in bench.write([99])[0].reason  # type: ignore[union-attr]
    assert time.monotonic() - began < 2
    bench.gets(written)
    bench.storage.delete(bench.keys(written))
    bench.put([99])


def test_native_moves_what_the_storage_moves(master: Server, owner: Server, shared: Open, context: KitContext) -> None:
    store, arena = shared(master), KitArena(PAGE, 4)
    config = MooncakeConfig(f"127.0.0.1:{master.port}")
    make_native = stepwell_storages()[0].native
    assert make_native is not None
    client = make_native(config, context, arena)
    keys = [bytes([number]) * 40 for number in (1, 2)]
    arena.fill(0, b"\1" * PAGE)
    arena.fill(1, b"\2" * PAGE)
    client.put(keys, arena.views([0, 1]))
    client.get(keys[::-1], arena.views([2, 3]))
    assert (arena.page(2), arena.page(3)) == (b"\2" * PAGE, b"\1" * PAGE)
    assert store.contains(keys) == [True, True]
    with pytest.raises(RuntimeError, match=r"1 of 2 pages were not moved: not found \(-704\)"):
        client.get([keys[0], bytes(40)], arena.views([2, 3]))
    client.close()
    assert store.contains(keys) == [False, False]


def test_offloaded_pages_outlive_master_and_owner(masters: Serve, owners: Serve, opened: Open, tmp_path: Path) -> None:
    """More than the segment holds, and all of it there after everybody was killed."""
    master = masters("--enable_offload=true")
    folder = tmp_path / "disk"
    owner = owners(master, 16, str(folder))
    bench = Bench(opened(master), MIB // 4, 72)
    ends = time.monotonic() + 20
    for number in range(72):
        while bench.write([number]) != [DONE]:  # there is room for more once the first are on disk
            assert time.monotonic() < ends, f"page {number} has no room"
    while sum(path.is_file() for path in folder.rglob("*")) < 72:
        assert time.monotonic() < ends, "not all pages come to disk"
        time.sleep(0.1)
    bench.gets(range(72))
    owner.kill()
    master.restart()
    owner.start()
    ends = time.monotonic() + 20
    while missing := [number for number, result in enumerate(bench.read(range(72))[0]) if result != DONE]:
        assert time.monotonic() < ends, f"pages {missing} are missing"
        time.sleep(0.1)
    bench.gets(range(72))
