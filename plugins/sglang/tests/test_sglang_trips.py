"""Pages go out and come back, byte for byte: every pool, layout and storage, as SGLang's controller calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import Capability
from stepwell.config import Chosen
from stepwell_sglang import trial
from stepwell_sglang.memory import SHM
from stepwell_testkit.server import Server, lacking

from .conftest import Shaky, content, fill, hashes
from .mooncake_master import master, own_network

ROOT = Path(__file__).resolve().parents[3]

POOLS = {
    "mha": lambda layout: trial.mha(layout),
    "mha-bf16": lambda layout: trial.mha(layout, dtype="bfloat16", heads=1),
    "mha-apart": lambda layout: trial.mha(layout, v_dim=32),
    "mla": lambda layout: trial.mla(layout),
}
LAYOUTS = ("page_first", "page_first_direct")


def redis(folder: Path) -> Any:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        lacking("redis-server is not installed")
    flags = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
    return Server(lambda ports: [str(program), "--port", str(ports[0]), *flags], folder)


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The settings of a storage that runs, where its plugin is installed."""
    name = request.param
    if name != "memory":
        pytest.importorskip(f"stepwell_{name}")
    if name in ("file", "nixl"):
        yield {"use": name, "path": str(tmp_path / "pages"), "gib": 0.1}
    elif name == "redis":
        with redis(tmp_path) as server:
            yield {"use": "redis", "url": f"redis://127.0.0.1:{server.port}"}
    else:
        yield {"use": name}


def there_and_back(attach: Any, kind: str, layout: str, storage: dict[str, object], **more: object) -> None:
    pool = POOLS[kind](layout)
    store = attach(pool, storage, more=more, model=f"{kind} {layout}")
    driver = trial.Driver(store, pool)
    names = hashes(5)
    fill(pool, 1)
    source, target = pool.alloc(5 * pool.page_size), pool.alloc(6 * pool.page_size)
    before = content(pool, source)
    assert driver.prefetch(names, target) == 0
    assert driver.backup(names, source) == 5
    assert driver.backup(names, source) == 5, "pages that are there are no failure"
    fill(pool, 2)
    assert driver.prefetch([*names, "unknown"], target) == 5
    assert content(pool, target[: 5 * pool.page_size]) == before
    store.close()


@pytest.mark.parametrize("storage", ["memory", "file", "redis", "nixl"], indirect=True)
@pytest.mark.parametrize("verify", [True, False], ids=["sealed", "bare"])
def test_each_pool_and_layout_comes_back_as_it_was(attach: Any, storage: dict[str, object], verify: bool) -> None:
    for kind in POOLS:
        for layout in LAYOUTS:
            there_and_back(attach, kind, layout, storage, verify=verify)


def test_mooncake_takes_each_pool_by_a_client_of_its_own(attach: Any, tmp_path: Path) -> None:
    if "mooncake.store" in sys.modules:  # its threads stay in the network in which it was used first
        name = f"{__file__}::test_mooncake_takes_each_pool_by_a_client_of_its_own"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-4000:]
        return
    with own_network(), master(tmp_path) as server:
        at = {"master": f"127.0.0.1:{server.ports[0]}", "metrics": f"127.0.0.1:{server.ports[1]}"}
        storage = {"use": "mooncake", "segment_gib": 0.125, **at}
        for kind, layout in (("mha", "page_first"), ("mla", "page_first_direct")):
            there_and_back(attach, kind, layout, storage, verify=True, also={"segment_gib": 0})


@pytest.mark.parametrize("storage", ["memory", "file"], indirect=True)
def test_pages_travel_as_tensors_too(attach: Any, storage: dict[str, object]) -> None:
    pool = trial.mha()
    store = attach(pool, storage, more={"interface_v1": 0, "bounce_mib": 1})
    driver = trial.Driver(store, pool, by_slot=False)
    fill(pool, 1)
    source, target = pool.alloc(9 * 16), pool.alloc(9 * 16)
    before = content(pool, source)
    assert driver.backup(hashes(9), source) == 9
    assert store.get(hashes(10)[9]) is None
    assert store.exists(hashes(1)[0])
    assert not store.exists("unknown")
    fill(pool, 2)
    pages = store.batch_get(hashes(9), [pool.get_dummy_flat_data_page() for _ in range(9)])
    for at, page in enumerate(pages):
        pool.set_from_flat_data_page(target[at * 16], page)
    assert content(pool, target) == before


def test_a_restart_finds_the_pages(attach: Any, tmp_path: Path) -> None:
    storage = {"use": "file", "path": str(tmp_path), "gib": 0.1}
    pool = trial.mha()
    fill(pool, 1)
    source = pool.alloc(4 * 16)
    before = content(pool, source)
    first = attach(pool, storage)
    assert first.batch_set_v1(hashes(4), source) == [True] * 4
    first.close()
    again = trial.mha()
    second = attach(again, storage)
    target = again.alloc(4 * 16)
    assert second.batch_exists(hashes(4)) == 4
    assert second.batch_get_v1(hashes(4), target) == [True] * 4
    assert content(again, target) == before


def test_a_batch_of_hundreds_is_cut_for_the_threads(attach: Any, tmp_path: Path) -> None:
    pool = trial.mha(pages=600)
    store = attach(pool, {"use": "file", "path": str(tmp_path), "gib": 0.5}, more={"verify": True})
    fill(pool, 1)
    source, target = pool.alloc(300 * 16), pool.alloc(300 * 16)
    before = content(pool, source)
    assert store.batch_set_v1(hashes(300), source) == [True] * 300
    assert store.batch_get_v1(hashes(300), target) == [True] * 300
    assert content(pool, target) == before


def test_the_real_controller_backs_up_and_prefetches(attach: Any, tmp_path: Path) -> None:
    """The methods of HiCacheController itself, without its threads and its GPU."""
    from queue import Queue

    from sglang.srt.managers.cache_controller import HiCacheController, PrefetchOperation, StorageOperation

    pool = trial.mha()
    store = attach(pool, {"use": "file", "path": str(tmp_path), "gib": 0.1})
    controller = object.__new__(HiCacheController)
    controller.storage_backend, controller.storage_host_pool, controller.page_size = store, pool, 16
    controller.page_get_func, controller.page_set_func = controller._page_get_zero_copy, controller._page_set_zero_copy
    controller.prefetch_sync_queue = Queue()
    fill(pool, 1)
    source, target = pool.alloc(6 * 16), pool.alloc(6 * 16)
    before = content(pool, source)
    backup = StorageOperation(source, list(range(96)), hash_value=hashes(6))
    controller._page_backup(backup)
    assert backup.completed_tokens == 96
    prefetch = PrefetchOperation("request", list(range(96)), None, None)
    prefetch.host_indices, prefetch.hash_value = target, hashes(6)
    assert controller._page_transfer(prefetch) == 6
    assert content(pool, target) == before


@pytest.mark.parametrize("verify", [True, False], ids=["sealed", "bare"])
def test_a_storage_that_needs_named_memory_gets_copies(
    attach: Any, shaky: Shaky, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    lent = []
    monkeypatch.setattr(Chosen, "provides", property(lambda self: frozenset({Capability.NAMED_MEMORY})))
    monkeypatch.setattr(Shaky, "attach", lambda self, arena: lent.append((arena, (SHM / arena.name).stat().st_size)))
    for kind in POOLS:
        there_and_back(attach, kind, "page_first", {"use": "memory"}, verify=verify, bounce_mib=0.25)
        shaky.pages.clear()
        assert not any((SHM / arena.name).exists() for arena, _ in lent), "a kill must leave nothing there"
    assert len(lent) == len(POOLS), "one memory, ours"
    assert all(arena.nbytes == size for arena, size in lent)
