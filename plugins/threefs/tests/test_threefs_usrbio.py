"""USRBIO that is slow, silent, full, wrong or dead, and what a call does about it. The client is a double."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from stepwell import DONE, ConfigError, Failed, PageResult
from stepwell_testkit.bench import Bench
from stepwell_threefs import ThreefsConfig
from stepwell_threefs import usrbio as subject
from stepwell_threefs.store import ThreefsStorage

PAGE = 16 * 1024
Open = Callable[..., ThreefsStorage]


@pytest.fixture(params=[True, False], ids=["straight", "copied"])
def bench(request: pytest.FixtureRequest, mount: Path, extension: ModuleType, opened: Open) -> Bench:
    store = opened(mount / "pages", usrbio=True, entries=4, staging_mib=1)
    return Bench(store, PAGE, 32, named=request.param)


def later(after_s: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(after_s, call)
    timer.start()
    return timer


def done(results: object) -> list[bool]:
    return [result == DONE for result in results]  # type: ignore[attr-defined]


def test_a_ring_smaller_than_a_batch_is_filled_again_and_again(bench: Bench, extension: ModuleType) -> None:
    bench.put(range(32))
    bench.gets(range(31, -1, -1))
    extension.control.most_answers = 1
    bench.gets(range(32))
    assert extension.control.prepared > extension.control.carried  # some were refused for want of room


def test_b074_errors_land_on_their_own_pages(bench: Bench, extension: ModuleType) -> None:
    bench.put(range(16))
    spoilt = {2: -errno.EIO, 5: -4003, 7: 0, 11: PAGE - 1, 13: PAGE + 1}
    extension.control.judge = lambda read, off, size: spoilt.get(off // PAGE) if read else None
    results, pages = bench.read(range(16))
    assert done(results) == [number not in spoilt for number in range(16)]
    for number in set(range(16)) - set(spoilt):
        assert pages[number] == bench.bytes_of(number)
    reasons = {number: results[number].reason for number in spoilt}  # type: ignore[union-attr]
    assert "Input/output error" in reasons[2] and "3FS code 4003" in reasons[5] and "0 bytes" in reasons[7]
    extension.control.judge = None
    bench.gets(range(16))


def test_b083_b091_a_write_that_was_short_or_failed_is_never_visible(bench: Bench, extension: ModuleType) -> None:
    spoilt = {1: -errno.ENOSPC, 3: PAGE // 2}
    extension.control.judge = lambda read, off, size: None if read else spoilt.get(off // PAGE)
    results = bench.write(range(6))
    assert done(results) == [number not in spoilt for number in range(6)]
    assert "No space" in results[1].reason  # type: ignore[union-attr]
    bench.lacks([1, 3])
    bench.gets([0, 2, 4, 5])
    extension.control.judge = None
    bench.put(range(6))
    bench.gets(range(6))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF, errno.EAGAIN])
def test_a_refused_request_fails_alone_and_those_before_it_are_waited_for(
    bench: Bench, extension: ModuleType, code: int
) -> None:
    bench.put(range(8))
    start = extension.control.prepared
    extension.control.delay_s = 0.002
    extension.control.refuse = lambda number: code if number == start + 4 else 0
    results, pages = bench.read(range(8))
    if code == errno.EAGAIN:
        assert all(done(results))
    else:
        assert done(results) == [number != 3 for number in range(8)]
    for number, result in enumerate(results):
        assert result != DONE or pages[number] == bench.bytes_of(number)
    extension.control.refuse = None
    bench.gets(range(8))


def test_b092_a_call_outlasts_every_request_of_its_own(
    bench: Bench, extension: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Waits time out with short lists, and what is late still writes into the memory: nobody may have it back."""
    monkeypatch.setattr(subject, "SLICE", subject.timedelta(seconds=0.02))
    monkeypatch.setattr(subject, "WARN_S", 0.1)
    bench.put(range(8))
    extension.control.held.set()
    over: list[tuple[list[PageResult], float]] = []
    thread = threading.Thread(target=lambda: over.append((bench.read(range(8))[0], time.monotonic())))  # type: ignore[arg-type]
    thread.start()
    time.sleep(0.5)
    assert not over, "the call has returned while its requests were under way"
    freed = time.monotonic()
    extension.control.held.clear()
    thread.join(20)
    assert over and all(done(over[0][0])) and over[0][1] >= freed
    assert "has not answered" in caplog.text
    bench.arena.paint(0x3C)
    time.sleep(0.05)
    assert set(bytes(bench.arena.memory)) == {0x3C}
    bench.gets(range(8))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # links that died with the mount
def test_a_client_that_dies_costs_misses_and_its_successor_is_used(
    bench: Bench, extension: ModuleType, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "SLICE", subject.timedelta(seconds=0.02))
    bench.put(range(8))
    extension.control.held.set()
    virtual = mount / "3fs-virt"

    def die() -> None:
        extension.control.dead = True
        virtual.rename(mount / "was")

    timer = later(0.1, die)
    results, _ = bench.read(range(8))
    timer.join()
    assert all(isinstance(result, Failed) and "gone" in result.reason for result in results)
    assert all(isinstance(result, Failed) for result in bench.read(range(8))[0])
    (mount / "was").rename(virtual)
    extension.control.held.clear()
    extension.control.dead = False
    bench.gets(range(8))
    bench.put(range(8, 16))
    bench.gets(range(16))


def test_rings_are_as_many_as_calls_at_once(bench: Bench, extension: ModuleType) -> None:
    extension.control.delay_s = 0.001
    broken: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for _ in range(5):
                numbers, slots = [100 * worker + at for at in range(8)], range(8 * worker, 8 * worker + 8)
                assert all(done(bench.write(numbers, slots)))
                results, pages = bench.read(numbers, slots)
                assert all(done(results))
                assert pages == [bench.bytes_of(number) for number in numbers]
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not broken, broken
    assert extension.control.rings <= 8


def test_files_are_registered_once_and_let_go(bench: Bench, extension: ModuleType, mount: Path) -> None:
    bench.put(range(8))
    for _ in range(3):
        bench.gets(range(8))
    assert 1 <= extension.registered() <= 2
    bench.storage.close()
    assert extension.registered() == 0
    assert not list((mount / "3fs-virt" / "iovs").iterdir())


def test_a_page_larger_than_the_staging_memory(mount: Path, opened: Open) -> None:
    bench = Bench(opened(mount / "pages", usrbio=True, staging_mib=1), 2 << 20, 2)
    [result] = bench.write([0])
    assert "storage.staging_mib" in result.reason  # type: ignore[union-attr]
    bench.lacks([0])


def test_a_link_in_shared_memory_is_not_lent(mount: Path, extension: ModuleType, opened: Open) -> None:
    store = opened(mount / "pages", usrbio=True, staging_mib=1)
    bench = Bench(store, PAGE, 8)
    before = extension.control.iovecs
    link = Path("/dev/shm") / "stepwell-kit-link"
    link.unlink(missing_ok=True)
    link.symlink_to(f"/proc/self/fd/{bench.arena.fd}")
    try:
        bench.arena.name = link.name
        store.attach(bench.arena)
    finally:
        bench.arena.name = ""
        link.unlink()
    assert extension.control.iovecs == before
    bench.put(range(8))
    bench.gets(range(8))


# --- where USRBIO cannot be had ---------------------------------------------------------------------------------------


def test_a_folder_elsewhere_is_refused_or_served_through_calls(mount: Path, opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage.path: .* is not on 3FS"):
        opened(tmp_path / "elsewhere", usrbio=True)
    bench = Bench(opened(tmp_path / "elsewhere"), PAGE, 8)
    bench.put(range(8))
    bench.gets(range(8))


def test_a_client_that_takes_no_rings(mount: Path, extension: ModuleType, opened: Open) -> None:
    extension.control.dead = True
    with pytest.raises(ConfigError, match=r"storage.usrbio: the 3FS client at .* takes no ring"):
        opened(mount / "pages", usrbio=True)
    bench = Bench(opened(mount / "pages"), PAGE, 8)
    bench.put(range(8))
    bench.gets(range(8))


def test_without_the_library(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage.usrbio: its library cannot be imported"):
        opened(tmp_path / "pages", usrbio=True)
    assert ThreefsConfig(tmp_path).usrbio == "auto"
