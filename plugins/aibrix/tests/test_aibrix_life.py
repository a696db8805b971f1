"""What the kit cannot ask of every store: restarts, a kill, a disk that was full, strangers, a bad start."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepwell import DONE, Capability, ConfigError, Failed, PageResult
from stepwell.config import Config
from stepwell.offers import provided
from stepwell_aibrix import make, stepwell_storages
from stepwell_aibrix.config import AibrixConfig
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench
from stepwell_testkit.process import with_file_limit

PAGE = 64 * 1024

WRITER = """
import logging, sys, time
from pathlib import Path
from stepwell_aibrix import make
from stepwell_aibrix.config import AibrixConfig
from stepwell_testkit import KitContext
from stepwell_testkit.bench import Bench
store = make(AibrixConfig(sys.argv[1], Path(sys.argv[2])), KitContext(Path(sys.argv[2])))
bench = Bench(store, 65536, 8, "salt")
bench.put(range(8))
print("written", flush=True)
for turn in range(1, 10**6):
    bench.put(range(8 * turn, 8 * turn + 8))
"""


@pytest.mark.parametrize("connector", ["rocksdb", "shfs"])
def test_killed_while_it_writes_it_opens_again_with_whole_pages(
    connector: str, tmp_path: Path, context: KitContext
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), connector, str(tmp_path / "pages")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    again = make(AibrixConfig(connector, tmp_path / "pages"), context)
    bench = Bench(again, PAGE, 8, "salt")
    bench.gets(range(8))
    for first in range(8, 4000, 8):
        bench.found(range(first, first + 8))  # each is right or missing
    again.close()


def test_rocksdb_writes_again_once_there_is_room(tmp_path: Path, context: KitContext) -> None:
    store = make(AibrixConfig("rocksdb", tmp_path / "pages"), context)
    bench = Bench(store, PAGE, 8)
    bench.put(range(4))
    with with_file_limit(4096):
        assert all(isinstance(result, Failed) for result in bench.write(range(4, 8)))
    end = time.monotonic() + 10
    while any(isinstance(result, Failed) for result in _written(bench)) and time.monotonic() < end:
        time.sleep(0.1)
    bench.put(range(4, 8))
    bench.gets(range(8))
    store.close()


def _written(bench: Bench) -> Sequence[PageResult]:
    try:
        return bench.write(range(4, 8))
    except RuntimeError as error:
        return [Failed(str(error))]


def test_a_database_that_another_has_open_is_refused_in_a_sentence(tmp_path: Path, context: KitContext) -> None:
    first = make(AibrixConfig("rocksdb", tmp_path / "pages"), context)
    with pytest.raises(ConfigError, match=r"storage\.path: .* is open in another process, and RocksDB allows one"):
        make(AibrixConfig("rocksdb", tmp_path / "pages"), context)
    first.close()


@pytest.mark.parametrize("connector", ["rocksdb", "shfs"])
def test_a_path_that_is_a_file_is_refused_in_a_sentence(connector: str, tmp_path: Path, context: KitContext) -> None:
    (tmp_path / "pages").write_text("no folder")
    with pytest.raises(ConfigError, match=rf"storage\.connector = '{connector}': .*pages cannot be opened"):
        make(AibrixConfig(connector, tmp_path / "pages"), context)


@pytest.mark.parametrize("connector", ["rocksdb", "shfs"])
@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "loop", "y" * 300])
def test_a_folder_that_cannot_be_made_is_refused_in_a_sentence(
    connector: str, place: str, tmp_path: Path, context: KitContext
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=rf"storage\.connector = '{connector}': .* cannot be opened: ") as refused:
        make(AibrixConfig(connector, tmp_path / place), context)
    assert "\n" not in str(refused.value)


def test_a_page_that_raises_fails_alone_and_the_batch_ends_with_its_last_page(
    tmp_path: Path, context: KitContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is lent until the call returns, so nothing may go on filling it then."""
    store = make(AibrixConfig("shfs", tmp_path / "pages"), context)
    bench = Bench(store, PAGE, 8)
    bench.put(range(8))
    connector = store._connector  # type: ignore[attr-defined]
    get, under_way = connector._get, []

    def slow(key: bytes, region: object) -> object:
        if key.endswith(bench.key(0)):
            raise PermissionError("not yours")
        under_way.append(key)
        time.sleep(0.05)
        answer = get(key, region)
        under_way.remove(key)
        return answer

    monkeypatch.setattr(connector, "_get", slow)
    results, _ = bench.read(range(8))
    assert not under_way
    assert isinstance(results[0], Failed) and "not yours" in results[0].reason
    assert results[1:] == [DONE] * 7
    store.close()


def test_a_remote_store_without_its_client_is_refused_in_a_sentence(context: KitContext) -> None:
    with pytest.raises(ConfigError, match=r"storage\.connector = 'hpkv': .* cannot be opened: No module named 'hpkv'"):
        make(AibrixConfig("hpkv"), context)


def test_keys_of_others_in_the_database_are_left_out_and_left_alone(tmp_path: Path, context: KitContext) -> None:
    store = make(AibrixConfig("rocksdb", tmp_path / "pages"), context)
    database = store._connector.store  # type: ignore[attr-defined]
    database.put(b"a stranger", b"1")
    database.put(b"stepwell0", b"2")
    bench = Bench(store, PAGE, 4)
    bench.put(range(4))
    listed = [page for batch in store.scan() for page in batch]
    assert {page.key for page in listed} == set(bench.keys(range(4)))
    assert {page.nbytes for page in listed} == {PAGE}
    store.delete(bench.keys(range(4)))
    assert database.get(b"a stranger") == b"1"
    store.close()


def test_another_size_under_a_key_is_never_done(tmp_path: Path, context: KitContext) -> None:
    for connector in ("rocksdb", "shfs"):
        store = make(AibrixConfig(connector, tmp_path / connector), context)
        small = Bench(store, 4096, 2, "salt")
        small.put([1])
        large = Bench(store, 8192, 2, "salt")
        results, _ = large.read([1])
        assert isinstance(results[0], Failed)
        store.close()


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ([], r"storage\.path: is required for the rocksdb connector"),
        (["storage.connector=hpkv", "storage.path=/x"], r"storage\.path .*: has no meaning for the hpkv connector"),
        (["storage.path=/x", "storage.threads=0"], r"storage\.threads .*: must be 1 to 64"),
        (["storage.connector=rocks"], r"storage\.connector .*: 'rocks' is not one of rocksdb, shfs"),
    ],
)
def test_settings_that_cannot_be(sets: list[str], why: str) -> None:
    config = Config.load(None, {}, ["storage.use=aibrix", *sets])
    with pytest.raises(ConfigError, match=why):
        config.choose("storage", "storage", config.load_plugins())


def test_what_it_can_do_depends_on_the_connector() -> None:
    (offer,) = stepwell_storages()
    rocks = provided(offer, AibrixConfig("rocksdb", Path("/x")))
    assert rocks == {Capability.DELETES, Capability.PERSISTENT, Capability.LISTS}
    assert Capability.SHARED in provided(offer, AibrixConfig("shfs", Path("/x")))
    assert Capability.LISTS not in provided(offer, AibrixConfig("eic"))
