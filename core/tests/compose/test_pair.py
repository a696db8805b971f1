"""Mirror and tiered: the kit, then what two stores are there for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell import DONE, MISSING, Capability, Failed, Offer, Storage
from stepwell.builtin.compose import MirrorConfig, TieredConfig, mirror, tiered
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Part
from stepwell_file import FileConfig
from stepwell_file.store import FileStorage
from stepwell_testkit import Faults, FaultyStorage, KitContext, StorageKit
from stepwell_testkit.bench import Bench

PAGE = 4096


def part(storage: Storage) -> Part[Storage]:
    """A part that is this very storage."""
    return Part(Offer("given", lambda config, context: storage), None)


class TestMirror(StorageKit):
    provides = frozenset({Capability.PERSISTENT, Capability.SHARED, Capability.DELETES, Capability.LISTS})

    @pytest.fixture
    def reopen(self, tmp_path: Path, context: KitContext) -> Callable[[], Storage]:
        def file(name: str) -> Part[Storage]:
            return Part(Offer("file", FileStorage), FileConfig(tmp_path / name, gib=0.1))

        return lambda: mirror(MirrorConfig(file("a"), file("b")), context)

    @pytest.fixture
    def storage(self, reopen: Callable[[], Storage]) -> Storage:
        return reopen()


class TestTiered(StorageKit):
    provides = frozenset({Capability.DELETES, Capability.LISTS})

    @pytest.fixture
    def storage(self, context: KitContext) -> Storage:
        fast = Part(Offer("memory", MemoryStorage), MemoryConfig(2**20 / 2**30))
        return tiered(TieredConfig(fast, Part(Offer("memory", MemoryStorage), MemoryConfig(1.0))), context)


class Two:
    """A pair over two memories, each behind faults."""

    def __init__(self, context: KitContext, make: Callable[..., Storage], config: type, **settings: object) -> None:
        self.one = FaultyStorage(MemoryStorage(MemoryConfig(), context), Faults())
        self.two = FaultyStorage(MemoryStorage(MemoryConfig(), context), Faults())
        self.pair = make(config(part(self.one), part(self.two), **settings), context)
        self.bench = Bench(self.pair, PAGE, 16)

    def held(self, store: FaultyStorage, numbers: range) -> list[bool]:
        return list(store.inner.contains(self.bench.keys(numbers)))


def test_a_mirror_writes_to_both_and_reads_the_first(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.bench.put(range(4))
    assert all(two.held(two.one, range(4))) and all(two.held(two.two, range(4)))
    two.bench.gets(range(4))
    assert two.two.calls["read"] == 0


def test_a_mirror_survives_the_loss_of_either(context: KitContext) -> None:
    for lost in ("one", "two"):
        two = Two(context, mirror, MirrorConfig)
        two.bench.put(range(4))
        getattr(two, lost).faults = Faults(raises=1)
        two.bench.gets(range(4))
        two.bench.put(range(4, 8))
        two.bench.gets(range(8))


def test_a_mirror_that_needs_both_copies_says_so_of_each_page(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig, copies="both")
    two.two.faults = Faults(write_error=3)
    results = two.bench.write(range(6))
    assert [result == DONE for result in results] == [True, True, False, True, True, False]
    assert isinstance(results[2], Failed)


def test_a_page_that_only_the_second_has_is_repaired_when_it_is_read(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.one.faults = Faults(raises=1)
    two.bench.put(range(3))
    two.one.faults = Faults()
    assert not any(two.held(two.one, range(3)))
    two.bench.gets(range(3))
    assert all(two.held(two.one, range(3)))


def test_repair_can_be_left_out(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig, repair=False)
    two.one.inner.delete(two.bench.keys(range(3)))
    two.two.inner.write(two.bench.keys([0]), two.bench.arena.views([0]))
    two.bench.read([0])
    assert not any(two.held(two.one, range(1)))


def test_a_store_that_keeps_failing_is_left_alone(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.bench.put(range(2))
    two.one.faults = Faults(raises=1)
    for _ in range(40):
        two.bench.gets(range(2))
    assert two.one.calls["read"] < 20, "its breaker has opened"


def test_missing_in_one_and_failing_in_the_other_is_no_miss(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.one.faults = Faults(read_error=1)
    two.one.inner.write(two.bench.keys([1]), two.bench.arena.views([1]))
    results, _ = two.bench.read([1, 2])
    assert isinstance(results[0], Failed)
    assert results[1] == MISSING


def test_a_page_damaged_in_the_first_comes_whole_from_the_second(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.bench.put(range(6))
    two.one.faults = Faults(short_read=2)
    two.bench.gets(range(6))


def test_tiered_promotes_what_came_from_the_large_store(context: KitContext) -> None:
    two = Two(context, tiered, TieredConfig, write="large")
    two.bench.put(range(4))
    assert not any(two.held(two.one, range(4)))
    two.bench.gets([1, 2])
    assert two.held(two.one, range(4)) == [False, True, True, False]
    reads = two.two.calls["read"]
    two.bench.gets([1, 2])
    assert two.two.calls["read"] == reads, "the fast store answers alone"


def test_tiered_without_promotion(context: KitContext) -> None:
    two = Two(context, tiered, TieredConfig, write="large", promote=False)
    two.bench.put(range(2))
    two.bench.gets(range(2))
    assert not any(two.held(two.one, range(2)))


def test_deleting_reaches_both_even_if_the_first_raises(context: KitContext) -> None:
    two = Two(context, mirror, MirrorConfig)
    two.bench.put(range(2))
    two.one.faults = Faults(raises=1)
    with pytest.raises(OSError):
        two.pair.delete(two.bench.keys([0]))
    assert two.held(two.two, range(2)) == [False, True]


def test_the_first_is_closed_when_the_second_cannot_be_made(context: KitContext) -> None:
    closed = []

    class Closing(MemoryStorage):
        def close(self) -> None:
            closed.append(1)

    def broken(config: object, context: object) -> Storage:
        raise ValueError("no server")

    first = part(Closing(MemoryConfig(), context))
    with pytest.raises(PluginError, match=r"^storage\.second\.use = 'broken': ValueError: no server$"):
        mirror(MirrorConfig(first, Part(Offer("broken", broken), None)), context)
    assert closed == [1]


def test_the_faults_of_each_part_are_counted_under_its_name(context: KitContext) -> None:
    two = Two(context, tiered, TieredConfig)
    two.bench.put(range(4))
    two.one.faults = Faults(raises=1)
    for _ in range(6):
        two.bench.gets(range(4))
    values = two.pair.values()
    assert values["fast_failed_exception"] > 0 and values["fast_failed_pause"] > 0
    assert (values["fast_read_paused"], values["large_read_paused"]) == (1, 0)
    assert values["large_pages_read"] == 24 and values["fast_pages_read"] == 0
    assert not any(name.startswith("large_failed") for name in values)
    outer = mirror(MirrorConfig(part(two.pair), part(MemoryStorage(MemoryConfig(), context))), context)
    assert outer.values()["first_fast_read_paused"] == 1


class Well(MemoryStorage):
    """Says what a plugin says of its own settings."""

    def __init__(self, config: object, context: object) -> None:
        raise ConfigError("storage.path: storage.path and storage.gib do not go together; see /mnt/storage.path/a")


def test_an_error_of_a_part_names_its_setting_where_it_is_written(context: KitContext) -> None:
    memory = Part(Offer("memory", MemoryStorage), MemoryConfig())
    well = Part(Offer("well", Well), FileConfig(Path("x")))
    with pytest.raises(ConfigError) as caught:
        tiered(TieredConfig(memory, well), context)
    large = "storage.large.path: storage.large.path and storage.large.gib do not go together"
    assert str(caught.value) == f"{large}; see /mnt/storage.path/a"
    with pytest.raises(ConfigError, match=r"^storage\.fast\.second\.path: storage\.fast\.second\.path and"):
        tiered(TieredConfig(Part(Offer("mirror", mirror), MirrorConfig(memory, well)), memory), context)


def test_a_part_whose_factory_breaks_is_named(context: KitContext) -> None:
    def broken(config: object, context: object) -> Storage:
        raise RuntimeError("dry")

    memory = Part(Offer("memory", MemoryStorage), MemoryConfig())
    inner = Part(Offer("mirror", mirror), MirrorConfig(memory, Part(Offer("well", broken), MemoryConfig())))
    with pytest.raises(PluginError, match=r"^storage\.large\.second\.use = 'well': RuntimeError: dry$"):
        tiered(TieredConfig(memory, inner), context)
