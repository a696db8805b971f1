"""Memory with a name has it while storage attaches, and a crash leaves nothing that the next start does not remove."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.cache import arena as module
from stepwell.cache.arena import SHM, Arena, lent_name, sweep
from stepwell.errors import ConfigError
from stepwell.types import Full, GroupSpec

GROUPS = (GroupSpec("full", Full(), 64, (0,)),)

pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm on this machine")


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(GROUPS, 16, [8], named=True)
    yield arena
    arena.close()


def names() -> set[str]:
    return {path.name for path in SHM.glob(f"{module.PREFIX}*")}


def test_only_memory_that_is_asked_for_by_name_has_one() -> None:
    before = names()
    arena = Arena.create(GROUPS, 16, [8])
    with arena.lending_name():
        assert arena.name == "" and arena.fd >= 0
    assert names() == before
    arena.close()


def test_the_file_is_the_memory_and_this_users_alone(arena: Arena) -> None:
    path = SHM / arena.name
    assert str(os.getpid()) in arena.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == arena.nbytes
    arena.memory[:4] = b"page"
    with path.open("r+b") as file:
        assert file.read(4) == b"page"
        file.seek(0)
        file.write(b"PAGE")
    assert bytes(arena.memory[:4]) == b"PAGE"


def test_the_name_is_gone_after_the_attaching_and_the_memory_stays(arena: Arena) -> None:
    name = arena.name
    with arena.lending_name():
        assert arena.name == name and (SHM / name).exists()
    assert arena.name == "" and not (SHM / name).exists()
    arena.memory[:4] = b"page"
    assert os.pread(arena.fd, 4, 0) == b"page"


def test_the_name_is_gone_after_an_attaching_that_failed(arena: Arena) -> None:
    name = arena.name
    with pytest.raises(RuntimeError), arena.lending_name():
        raise RuntimeError
    assert arena.name == "" and not (SHM / name).exists()


def test_a_second_attaching_reaches_the_same_memory_by_another_name(arena: Arena) -> None:
    with arena.lending_name():
        first = arena.name
    arena.memory[:4] = b"page"
    with arena.lending_name():
        assert arena.name not in ("", first)
        with (SHM / arena.name).open("r+b") as file:
            assert file.read(4) == b"page"
    assert arena.name == "" and not [name for name in names() if str(os.getpid()) in name]


def test_closing_takes_a_name_that_was_never_lent() -> None:
    arena = Arena.create(GROUPS, 16, [8], named=True)
    name = arena.name
    arena.close()
    assert not (SHM / name).exists()


CRASH = """
import os, signal
from stepwell.cache.arena import Arena, lent_name
from stepwell.types import Full, GroupSpec
arena = Arena.create((GroupSpec("full", Full(), 64, (0,)),), 16, [8], named=True)
lent = lent_name(arena.fd)
print(arena.name, lent.__enter__(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_crash_left_is_swept_and_what_is_in_use_is_not(arena: Arena) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    left = set(done.stdout.split())
    assert len(left) == 2 and left <= names(), done.stderr
    link = next(name for name in left if (SHM / name).is_symlink())
    assert link not in sweep(), "not yet: it may be another container's"
    os.utime(SHM / link, (0, 0), follow_symlinks=False)
    with lent_name(arena.fd) as link:
        again = Arena.create(GROUPS, 16, [8], named=True)
        assert not left & names(), "the next one sweeps"
        assert {arena.name, link, again.name} <= names()
        assert not {arena.name, link, again.name} & set(sweep())
    again.close()


def test_no_room_is_one_sentence_and_leaves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = names()
    with pytest.raises(ConfigError, match=r"of shared memory and /dev/shm has .* lower cache.host_pages or enlarge"):
        Arena.create(GROUPS, 16, [8], named=True)
    assert names() == before


def test_no_folder_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SHM", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"storage needs the host tier as a file in .*: mount a tmpfs of at least"):
        Arena.create(GROUPS, 16, [8], named=True)
