"""Faults from outside, on the real thing: `stepwell serve` with the file storage, whose processes are killed, whose
disk fills up, whose files are damaged, and storage that lies, hangs or fails.

The sim runner computes each token from the bytes of the pages that it was given, so an answer is right only if every
page was. What an answer must be is asked of the same server with the cache off.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plugins" / "server" / "tests"))  # for the server's own way to run its processes

from server_process import BASE, Server, real, refused, until  # noqa: E402

TIERS = (
    "cache.device_pages=64",
    "cache.host_pages=32",
    "runner.token_bytes=256",
    "write.use=write_through",
    "prefetch.use=timeout",
)
PLUGINS = "stepwell-server,stepwell-file"
TOKENS = 24
SYSTEM = "You know all there is to know about wells with steps, and answer in one sentence. "
PROMPTS = [
    SYSTEM + f"{name} asks: " + f"how deep is the water at {name}, and who drew it? " * 4
    for name in ("Abhaneri", "Patan", "Adalaj", "Bundi", "Delhi", "Hampi", "Mehrauli", "Nimrana")
]


def folder_of(path: Path, gib: float = 0.004) -> tuple[str, ...]:
    return (*TIERS, "storage.use=file", f"storage.path={path}", f"storage.gib={gib}", "storage.min_free_gib=0")


def ask(server: Server, prompt: str, **extra: object) -> tuple[str, dict[str, int]]:
    """The answer, and the tokens that came from each tier."""
    answer = server.openai().completions.create(
        model="sim", prompt=prompt, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True, **extra}
    )
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].text, details.stepwell if details.cached_tokens else {}


def right_answers(server: Server) -> dict[str, str]:
    """What the same server says with nothing from a cache, and leaving nothing in it."""
    right = {}
    for number, prompt in enumerate(PROMPTS):
        text, cached = ask(server, prompt, cache_salt=f"off-{number}", cache_store=False)
        assert not cached
        right[prompt] = text
    return right


def ask_all(server: Server, right: dict[str, str], rounds: int = 1) -> dict[str, int]:
    """Every prompt must be answered rightly; answers the tokens from each tier, over all."""
    tiers = {"device": 0, "host": 0, "storage": 0}
    for _ in range(rounds):
        for prompt in PROMPTS:
            text, cached = ask(server, prompt)
            assert text == right[prompt], prompt
            for tier in tiers:
                tiers[tier] += cached.get(tier, 0)
    return tiers


def settled(server: Server) -> bool:
    """Whether nothing runs, and nothing is on its way to storage."""
    return server.at_rest() and not server.stats()["store_pages_in_flight"]


def failures(server: Server) -> float:
    return sum(value for name, value in server.stats().items() if name.startswith("storage_failed"))


# --- killed processes --------------------------------------------------------------------------------------------


def test_kills_at_random_ticks_cost_requests_in_flight_and_nothing_else(tmp_path: Path) -> None:
    sets = (*folder_of(tmp_path / "pages"), "runner.pace=0.001", "runner.chunk=64")
    dice, over = random.Random(11), threading.Event()
    told: list[object] = []
    with real(tmp_path, *sets, plugins=PLUGINS) as server:
        right = right_answers(server)

        def keep_asking(seed: int) -> None:
            mine = random.Random(seed)
            while not over.is_set():
                prompt = mine.choice(PROMPTS)
                try:
                    told.append(ask(server, prompt)[0] == right[prompt])
                except openai.APIError as error:
                    told.append(type(error).__name__)
                    time.sleep(0.05)

        askers = [threading.Thread(target=keep_asking, args=(seed,)) for seed in range(4)]
        for asker in askers:
            asker.start()
        for name in ("engine", "front", "engine"):
            time.sleep(dice.uniform(0.3, 1.2))
            os.kill(server.pid(name), signal.SIGKILL)
            assert until(server.healthy, 40)
        time.sleep(0.5)
        over.set()
        for asker in askers:
            asker.join()
        assert False not in told
        assert told.count(True) > 8
        assert set(told) <= {True, "InternalServerError", "APIConnectionError"}
        assert ask_all(server, right, 2)["device"] > 0
        assert until(lambda: settled(server), 20)
        assert server.clean()
        assert not failures(server)


def ask_until_it_dies(server: Server, right: dict[str, str]) -> None:
    with pytest.raises(openai.APIError):
        ask_all(server, right, 1000)


def test_a_machine_that_dies_while_it_stores_finds_only_whole_pages(tmp_path: Path) -> None:
    pages, log = tmp_path / "pages", tmp_path / "first"
    log.mkdir()
    with real(log, *folder_of(pages), plugins=PLUGINS) as server:
        right = right_answers(server)
        engine = server.pid("engine")
        busy = threading.Thread(target=ask_until_it_dies, args=(server, right))
        busy.start()
        assert until(lambda: any(pages.glob("*.data")), 20)
        time.sleep(0.3)
        server.process.kill()
        os.kill(engine, signal.SIGKILL)
        busy.join()
    with real(tmp_path, *folder_of(pages), plugins=PLUGINS) as server:
        assert ask_all(server, right)["storage"] > 0
        assert until(lambda: settled(server), 20)
        assert server.clean()


# --- what lies in the folder ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder that a server filled and left, and the right answers."""
    folder = tmp_path_factory.mktemp("kept")
    with real(folder, *folder_of(folder / "pages"), plugins=PLUGINS) as server:
        right = right_answers(server)
        ask_all(server, right, 2)
        assert until(lambda: settled(server), 20)
    assert len(list((folder / "pages").glob("*.data"))) > 1
    return folder / "pages", right


def flip_bits(pages: Path) -> None:
    for path in pages.glob("*.data"):
        data = bytearray(path.read_bytes())
        for at in range(4096 + 500, len(data), 4096):
            data[at] ^= 0x10
        path.write_bytes(data)


def truncate(pages: Path) -> None:
    for path in pages.glob("pages-*"):
        os.truncate(path, path.stat().st_size * 2 // 3)


def swap(pages: Path) -> None:
    files = sorted(pages.glob("*.data"))
    for one, other in zip(files[::2], files[1::2], strict=False):
        aside = pages / "aside"
        one.rename(aside)
        other.rename(one)
        aside.rename(other)


def intrude(pages: Path) -> None:
    first = min(pages.glob("*.data"))
    (pages / "notes.txt").write_text("not a page")
    (pages / "pages-99999.data").write_bytes(os.urandom(70_000))
    (pages / "pages-99999.index").write_bytes(os.urandom(5_000))
    first.write_bytes(os.urandom(first.stat().st_size))
    first.with_suffix(".index").write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_bits, truncate, swap, intrude])
def test_damaged_files_cost_hits_and_never_an_answer(
    kept: tuple[Path, dict[str, str]], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    before, right = kept
    pages = tmp_path / "pages"
    shutil.copytree(before, pages)
    damage(pages)
    with real(tmp_path, *folder_of(pages), plugins=PLUGINS) as server:
        found = ask_all(server, right, 2)
        assert until(lambda: settled(server), 20)
        stats = server.stats()
        assert server.clean()
        if damage is flip_bits:
            assert stats["storage_missing"] + failures(server) > 0
        if damage in (truncate, intrude):
            assert found["storage"] > 0  # what was not touched is found


def test_the_folder_as_it_was_left_is_found(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    before, right = kept
    shutil.copytree(before, tmp_path / "pages")
    with real(tmp_path, *folder_of(tmp_path / "pages"), plugins=PLUGINS) as server:
        assert ask_all(server, right)["storage"] > len(PROMPTS) * 64
        assert not failures(server)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small filesystem can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_hits_and_is_counted_until_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    sets = (*folder_of(small_disk / "pages", gib=1), "tiers.breaker_s=0.2")
    with real(tmp_path, *sets, plugins=PLUGINS) as server:
        right = right_answers(server)
        (small_disk / "others").write_bytes(bytes(330_000))
        ask_all(server, right, 2)
        assert until(lambda: settled(server), 20)
        assert failures(server) > 0
        assert server.healthy()
        (small_disk / "others").unlink()
        assert until(lambda: ask_all(server, right) and server.stats()["storage_pages_written"] > 0, 20)
        assert until(lambda: settled(server), 20)
        assert server.clean()


# --- a server that cannot start says so ----------------------------------------------------------------------------


def one_sentence(status: int, told: str, *words: str) -> None:
    assert status == 2, told
    assert "Traceback" not in told
    line = told.strip().splitlines()[-1]
    assert told.count("Error: ") == 1
    assert line.startswith("Error: ")
    for word in words:
        assert word in line


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "pages").write_text("")
    status, told = refused(tmp_path, *BASE, *folder_of(tmp_path / "pages"), plugins=PLUGINS)
    one_sentence(status, told, "storage.path", "is not a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir(mode=0)
    status, told = refused(tmp_path, *BASE, *folder_of(tmp_path / "pages"), plugins=PLUGINS)
    one_sentence(status, told, "storage.path", "Permission denied")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, told = refused(tmp_path, *BASE, f"server.port={port}")
    one_sentence(status, told, str(port), "in use")


def test_a_key_that_does_not_exist(tmp_path: Path) -> None:
    status, told = refused(tmp_path, *BASE, "cache.host_gb=1")
    one_sentence(status, told, "cache.host_gb", "did you mean host_gib?")


# --- storage that misbehaves ---------------------------------------------------------------------------------------

BAD = """
from dataclasses import dataclass

from stepwell import Offer, hookimpl


@dataclass(frozen=True)
class Config:
    raises: int = 0
    corrupt: int = 0
    lost: int = 0
    write_error: int = 0
    slow_s: float = 0.0


def make(config, context):
    from stepwell.builtin.memory import MemoryConfig, MemoryStorage
    from stepwell_testkit.faults import Faults, FaultyStorage

    faults = Faults(
        raises=config.raises,
        corrupt=config.corrupt,
        lost=config.lost,
        write_error=config.write_error,
        slow_s=config.slow_s,
    )
    return FaultyStorage(MemoryStorage(MemoryConfig(), context), faults)


@hookimpl
def stepwell_storages():
    return [Offer("bad", make, Config)]
"""


@pytest.mark.parametrize(
    ("faults", "counted"),
    [
        (("corrupt=3",), "storage_failed_checksum"),
        (("lost=2", "write_error=3"), "storage_failed_failed"),
        (("raises=2",), "storage_failed_exception"),
        (("slow_s=0.4",), ""),
        (("slow_s=4",), "storage_late"),
    ],
)
def test_storage_that_misbehaves_costs_hits_and_never_an_answer(
    fake_dist: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    faults: tuple[str, ...],
    counted: str,
) -> None:
    site = fake_dist("stepwell-bad", {"stepwell_bad": BAD}, {"stepwell.v1": {"bad": "stepwell_bad"}})
    monkeypatch.setenv("PYTHONPATH", str(site))
    sets = (
        *TIERS,
        "storage.use=bad",
        *(f"storage.{one}" for one in faults),
        "tiers.timeout_s=0.6",
        "tiers.breaker_s=0.2",
        "engine.drain_s=2",
        "prefetch.base_s=0.2",
        "prefetch.per_ki_token_s=0",
    )
    with real(tmp_path, *sets, plugins="stepwell-server,stepwell-bad") as server:
        right = right_answers(server)
        begin = time.monotonic()
        ask_all(server, right, 1 if "slow" in faults[0] else 2)
        assert time.monotonic() - begin < 15
        assert until(server.at_rest, 20)
        assert server.clean()
        assert server.healthy()
        if counted:
            assert until(lambda: server.stats().get(counted, 0) > 0, 5), server.stats()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
