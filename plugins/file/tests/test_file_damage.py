"""Damage of every kind: pages are right or missing, what can be mended is mended, and start-up says what is wrong."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stepwell import DONE, MISSING, ConfigError, Done, Failed
from stepwell_file import FileConfig
from stepwell_file.disk import Disk
from stepwell_file.segment import HEADER
from stepwell_file.store import FileStorage
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench

PAGE = 64 * 1024
Open = Callable[..., FileStorage]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def opened(folder: Path, context: KitContext) -> Iterator[Open]:
    stores = []

    def make(disk: Disk | None = None, **settings: object) -> FileStorage:
        config = FileConfig(folder, **({"gib": 1 / 16, "min_free_gib": 0.0} | settings))  # type: ignore[arg-type]
        stores.append(FileStorage(config, context, disk))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def bench(store: FileStorage, salt: str = "damage", page: int = PAGE) -> Bench:
    return Bench(store, page, 16, salt)


def data_file(folder: Path) -> Path:
    [path] = folder.glob("pages-*.data")
    return path


# --- files that changed behind our back -----------------------------------------------------------------------------


def filled(opened: Open, pages: int = 8) -> None:
    store = opened()
    bench(store).put(range(pages))
    store.close()


def test_flipped_bits_are_a_failed_page_and_it_heals(opened: Open, folder: Path) -> None:
    filled(opened)
    with data_file(folder).open("r+b") as file:
        file.seek(HEADER + 2 * PAGE + 1234)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    store = bench(opened())
    results, _ = store.read(range(8))
    assert isinstance(results[2], Failed) and "pages-" in results[2].reason
    assert [result == DONE for result in results] == [True, True, False] + [True] * 5
    assert store.read([2])[0] == [MISSING], "what cannot come right again is forgotten"
    assert store.storage.usage().damaged_pages == 1
    store.put([2])
    store.gets(range(8))


@pytest.mark.parametrize("left", [0, 1, 4095, HEADER + 3 * PAGE - 1])
def test_b057_a_truncated_file_costs_pages_and_nothing_else(opened: Open, folder: Path, left: int) -> None:
    store = bench(opened())
    store.put(range(8))
    os.truncate(data_file(folder), left)
    whole = max(0, (left - HEADER) // PAGE)
    results, _ = store.read(range(8))
    assert [result == DONE for result in results] == [number < whole for number in range(8)]
    assert store.found(range(8)) == [number < whole for number in range(8)]
    again = bench(opened())
    assert list(again.storage.contains(again.keys(range(8)))) == [number < whole for number in range(8)]
    again.put(range(8))
    again.gets(range(8))


def test_swapped_pages_are_not_taken_for_each_other(opened: Open, folder: Path) -> None:
    filled(opened)
    path = data_file(folder)
    data = bytearray(path.read_bytes())
    one, two = (slice(HEADER + at * PAGE, HEADER + (at + 1) * PAGE) for at in (1, 5))
    data[one], data[two] = data[two], data[one]
    path.write_bytes(data)
    results, _ = bench(opened()).read(range(8))
    assert [isinstance(result, Failed) for result in results] == [number in (1, 5) for number in range(8)]


def test_swapped_and_foreign_files_give_no_page(opened: Open, folder: Path) -> None:
    for numbers in (range(4), range(4, 8)):
        store = bench(opened(segment_mib=0.25, gib=1 / 256), page=PAGE)
        store.put(numbers)
        store.storage.close()
    first, second = sorted(folder.glob("pages-*.data"))[:2]
    aside = folder / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    foreign = folder / f"pages-{1:016x}.data"
    foreign.write_bytes(b"not ours" * 1000)
    (folder / f"pages-{1:016x}.index").write_bytes(b"nor this" * 1000)
    (folder / "notes.txt").write_text("mine")
    (folder / "pages-zz.data").write_text("mine")
    (folder / "sub").mkdir()
    store = bench(opened(segment_mib=0.25, gib=1 / 256))
    results, pages = store.read(range(8))
    for number in range(8):
        assert results[number] != DONE or pages[number] == store.bytes_of(number)
    for turn in range(12):
        store.put(range(100 + 8 * turn, 108 + 8 * turn))
    assert foreign.read_bytes() == b"not ours" * 1000
    assert (folder / "notes.txt").read_text() == "mine" and (folder / "pages-zz.data").exists()


@pytest.mark.parametrize("cut", [1, 40, 83])
def test_a_torn_index_costs_the_last_page_only(opened: Open, folder: Path, cut: int) -> None:
    filled(opened)
    [index] = folder.glob("pages-*.index")
    os.truncate(index, index.stat().st_size - cut)
    store = bench(opened())
    store.gets(range(7))
    store.lacks([7])
    store.put([7, 8, 9])
    bench(opened()).gets(range(10))


def test_garbage_in_an_index_is_skipped(opened: Open, folder: Path) -> None:
    filled(opened)
    [index] = folder.glob("pages-*.index")
    data = bytearray(index.read_bytes())
    data[84 * 3 + 20] ^= 1
    index.write_bytes(data[: 84 * 5] + os.urandom(31) + data[84 * 5 :])
    assert bench(opened()).found(range(8)) == [number != 3 for number in range(8)]


# --- system calls that fail -----------------------------------------------------------------------------------------


class Faulty(Disk):
    """Fails or falls short where a rule says so."""

    def __init__(self) -> None:
        self.fail_write: Callable[[int], int] = lambda nth: 0
        self.fail_read: Callable[[int], int] = lambda nth: 0
        self.short = 0
        self.no_append = False
        self.no_blocks = False
        self.bad: set[bytes] = set()
        self._writes = 0

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if any(bytes(one[:16]) in self.bad for one in buffers):
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.short:
            return super().write(fd, [buffers[0][: self.short]], offset)
        return super().write(fd, buffers, offset)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if error := self.fail_read(offset):
            raise OSError(error, os.strerror(error))
        if self.short:
            return super().read(fd, [buffers[0][: self.short]], offset)
        return super().read(fd, buffers, offset)

    def append(self, fd: int, data: bytes) -> int:
        if self.no_append:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().append(fd, data[: self.short] if self.short else data)

    def allocate(self, fd: int, nbytes: int) -> None:
        if self.no_blocks:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, nbytes)


def test_b057_a_passing_read_error_costs_a_miss_and_no_page(
    opened: Open, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Faulty()
    store = bench(opened(disk))
    store.put(range(4))
    bad = range(HEADER + 2 * PAGE, HEADER + 3 * PAGE)
    disk.fail_read = lambda offset: errno.EIO if offset in bad or offset < bad.start else 0
    with caplog.at_level(logging.WARNING):
        results, _ = store.read([2])
    assert isinstance(results[0], Failed)
    assert data_file(folder).name in caplog.text, "a warning names the file"
    disk.fail_read = lambda offset: 0
    store.gets(range(4))


def test_an_error_at_one_page_leaves_its_neighbours_alone(opened: Open) -> None:
    disk = Faulty()
    store = bench(opened(disk, threads=1))
    store.put(range(8))
    bad = HEADER + 3 * PAGE
    read = disk.read

    def spoiled(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if offset <= bad < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, buffers, offset)

    disk.read = spoiled  # type: ignore[method-assign]
    results, _ = store.read(range(8))
    assert [isinstance(result, Failed) for result in results] == [number == 3 for number in range(8)]


def test_b074_b083_pages_that_failed_are_missing_now_and_after_a_restart(opened: Open) -> None:
    disk = Faulty()
    store = bench(opened(disk))
    disk.bad = {store.bytes_of(number)[:16] for number in (3, 7)}
    results = store.write(range(10))
    want = [number not in (3, 7) for number in range(10)]
    assert [isinstance(result, Done) for result in results] == want
    assert all(isinstance(results[number], Failed) for number in (3, 7))
    assert list(store.storage.contains(store.keys(range(10)))) == want
    assert store.found(range(10)) == want
    assert bench(opened()).found(range(10)) == want
    disk.bad = set()
    store.put([3, 7])
    store.gets(range(10))


def test_b088_one_page_there_already_and_one_without_space(opened: Open) -> None:
    disk = Faulty()
    store = bench(opened(disk))
    store.put([3])
    disk.bad = {store.bytes_of(6)[:16]}
    results = store.write(range(8))
    assert [isinstance(result, Done) for result in results] == [number != 6 for number in range(8)]
    assert bench(opened()).found(range(8)) == [number != 6 for number in range(8)]


@pytest.mark.parametrize("direct", ["auto", False])
def test_b091_short_writes_and_reads_are_completed(opened: Open, direct: bool | str) -> None:
    disk = Faulty()
    disk.short = 4096 if direct else 1000
    store = bench(opened(disk, direct=direct))
    store.put(range(4))
    store.gets(range(4))
    disk.short = 0
    bench(opened()).gets(range(4))


def test_b091_a_write_that_stops_halfway_is_an_error(opened: Open) -> None:
    disk = Faulty()
    store = bench(opened(disk))
    store.put([0])
    taken = iter([4096, 0, 0, 0])
    disk.write = lambda fd, buffers, offset: next(taken)  # type: ignore[method-assign]
    results = store.write([1])
    assert isinstance(results[0], Failed) and "4096 of 65536" in results[0].reason
    assert bench(opened()).found([0, 1]) == [True, False]


def test_an_index_that_takes_no_record_leaves_the_page_invisible(opened: Open) -> None:
    disk = Faulty()
    store = bench(opened(disk))
    store.put([0])
    disk.no_append = True
    assert isinstance(store.write([1])[0], Failed)
    assert store.found([0, 1]) == [True, False]
    disk.no_append = False
    store.put([1])
    bench(opened()).gets([0, 1])


def test_without_blocks_for_a_segment_writes_fail_and_reads_go_on(opened: Open) -> None:
    filled(opened)
    disk = Faulty()
    disk.no_blocks = True
    store = bench(opened(disk))
    assert all(isinstance(result, Failed) for result in store.write([20, 21]))
    store.gets(range(8))
    disk.no_blocks = False
    store.put([20, 21])


# --- a disk that is full --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "stepwell-test", str(mount)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def take_all(disk: Path) -> None:
    """Somebody else takes all the space that is left."""
    with (disk / "other").open("wb", buffering=0) as other, pytest.raises(OSError, match="No space"):
        while other.write(bytes(4096)):
            pass


def test_b091_b083_a_full_disk_fails_pages_and_shows_none_of_them(small_disk: Path, context: KitContext) -> None:
    config = FileConfig(small_disk / "pages", min_free_gib=0)
    store = FileStorage(config, context)
    one = Bench(store, PAGE, 64, "full")
    one.put(range(8))
    take_all(small_disk)
    results = one.write(range(8, 48))
    failed = [number for number, result in enumerate(results, 8) if isinstance(result, Failed)]
    found = one.found(range(48))
    assert not any(found[number] for number in failed)
    for number in range(8, 48):
        assert isinstance(results[number - 8], Failed) or found[number] or number < 40  # older ones may have left
    store.close()
    again = Bench(FileStorage(config, context), PAGE, 64, "full")
    assert not any(again.found(failed)) if failed else True
    (small_disk / "other").unlink()
    again.put(range(8, 24))
    again.gets(range(8, 24))
    again.storage.close()


def test_a_disk_full_at_the_start_is_one_sentence(small_disk: Path, context: KitContext) -> None:
    (small_disk / "other").touch()
    with (small_disk / "other").open("wb", buffering=0) as other, pytest.raises(OSError):
        while other.write(bytes(4096)):
            pass
    with pytest.raises(ConfigError, match=r"cannot be used .*No space left.*free some space"):
        FileStorage(FileConfig(small_disk / "pages"), context)


# --- folders that cannot be used ------------------------------------------------------------------------------------


def test_a_file_is_not_a_folder(folder: Path, context: KitContext) -> None:
    folder.write_text("mine")
    with pytest.raises(ConfigError, match="is not a folder"):
        FileStorage(FileConfig(folder), context)
    with pytest.raises(ConfigError, match="is not a folder"):
        FileStorage(FileConfig(folder / "inside"), context)


def test_another_version_is_refused_and_left_alone(opened: Open, folder: Path) -> None:
    filled(opened)
    (folder / "stepwell-file.format").write_text("stepwell file storage 999\n")
    with pytest.raises(ConfigError, match=r"another format .*999.*name another folder"):
        opened()
    assert data_file(folder).exists()


def test_a_folder_that_may_not_be_read_is_one_sentence(folder: Path) -> None:
    if os.geteuid():
        folder.mkdir(mode=0o000)
    else:
        folder.mkdir(mode=0o700)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from stepwell import ConfigError\n"
        "from stepwell_file import FileConfig\n"
        "from stepwell_file.store import FileStorage\n"
        "from stepwell_testkit import KitContext\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: FileStorage(FileConfig(Path(sys.argv[1])), KitContext(Path('/')))\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "cannot be used (Permission denied): allow this user" in done.stdout, done.stderr


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"gib": 0}, {"threads": 0}, {"segment_mib": -1}, {"min_free_gib": -1}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            FileConfig(Path("x"), **settings)  # type: ignore[arg-type]
