"""What a machine can give a host tier: containers' limits of both kinds, and machines that have none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stepwell.assemble import Assembly
from stepwell.cache import host
from stepwell.cache.host import container, demand, machine
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.plugins import load

GIB = 2**30


class Machine:
    """The files that say what there is."""

    def __init__(self, folder: Path, total: int = 64, available: int = 40) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        self.write(self.proc / "meminfo", f"MemTotal: {total * 2**20} kB\nMemAvailable: {available * 2**20} kB\n")
        self.write(self.proc / "self/statm", "9999999 0 0 0 0 0 0")
        self.write(self.proc / "self/cgroup", "0::/\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def second(self, level: str, limit: int | str, used: int, files: int = 0) -> None:
        folder = self.cgroup / level
        self.write(folder / "memory.max", f"{limit * GIB if isinstance(limit, int) else limit}\n")
        self.write(folder / "memory.current", f"{used * GIB}\n")
        self.write(folder / "memory.stat", f"anon 7\ninactive_file {files * GIB}\nactive_file 0\n")

    def first(self, level: str, limit: int, used: int, files: int = 0) -> None:
        folder = self.cgroup / "memory" / level
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        self.write(folder / "memory.usage_in_bytes", f"{used * GIB}\n")
        self.write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file 0\ntotal_active_file {files * GIB}\n")

    def demand(self, gib: float) -> None:
        demand(int(gib * GIB), "cache.host_gib", proc=self.proc, cgroup=self.cgroup)


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_container_s_limit_counts_and_not_what_its_host_has(box):
    box.second("", 32, 8)
    box.demand(24)
    with pytest.raises(
        ConfigError,
        match=r"needs 25 GiB and 24 GiB of memory are free \(memory.max 32 GiB, 8 GiB used\): lower cache.host_gib",
    ):
        box.demand(25)


def test_a_limit_is_believed_where_the_machine_says_less(box, caplog):
    box.write(box.proc / "meminfo", f"MemTotal: {8 * 2**20} kB\nMemAvailable: {4 * 2**20} kB\n")
    box.second("", 128, 3)
    with caplog.at_level(logging.WARNING):
        box.demand(100)
    assert "4 GiB are available (memory.max 128 GiB, 3 GiB used)" in caplog.text


def test_files_that_were_read_give_way(box):
    box.second("", 32, 30, files=20)
    box.demand(22)
    with pytest.raises(ConfigError, match="10 GiB used"):
        box.demand(22.5)


def test_the_least_of_nested_limits_counts(box):
    box.write(box.proc / "self/cgroup", "0::/pods/mine\n")
    box.second("", "max", 60)
    box.second("pods", 40, 30)
    box.second("pods/mine", 20, 1)
    assert container(box.proc, box.cgroup).nbytes == 10 * GIB


def test_limits_of_the_first_kind(box):
    box.write(box.proc / "self/cgroup", "5:memory:/docker/abc\n3:cpuset:/\n0::/\n")
    box.first("docker/abc", 16 * GIB, 4, files=2)
    assert container(box.proc, box.cgroup).nbytes == 14 * GIB
    box.first("docker/abc", 9223372036854771712, 4)
    assert container(box.proc, box.cgroup) is None


def test_a_group_that_is_mounted_as_the_root_is_found(box):
    box.write(box.proc / "self/cgroup", "5:memory:/docker/abc\n")
    box.first("", 16 * GIB, 4)
    assert container(box.proc, box.cgroup).nbytes == 12 * GIB


def test_without_a_limit_the_machine_s_memory_counts(box, caplog):
    box.second("", "max", 10)
    with caplog.at_level(logging.WARNING):
        box.demand(39)
        assert not caplog.text
        box.demand(50)
    assert "40 GiB are available" in caplog.text
    with pytest.raises(ConfigError, match="MemTotal 64 GiB"):
        box.demand(65)


def test_a_system_that_says_nothing_refuses_nothing(tmp_path):
    assert machine(tmp_path) is None
    demand(2**60, "cache.host_gib", proc=tmp_path, cgroup=tmp_path)


def test_too_much_is_said_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(host, "container", lambda *where: host.Room(GIB, "memory.max 1 GiB, 0 B used"))
    config = Config.load(None, {"HOME": "/nonexistent"}, extra={"runner.use": "sim", "cache.host_gib": 4.0})
    assembly = Assembly(config, load(only=()))
    monkeypatch.setattr(assembly, "_make", lambda *which: pytest.fail("a piece was made first"))
    with pytest.raises(ConfigError, match="needs 4 GiB and 1 GiB of memory are free"):
        assembly.parts()
