"""The storage benchmark: that it measures what it says, and says what went wrong."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stepwell import DONE, Failed, Full, GroupSpec, PageKey, PageResult, PageViews, StepwellError, Storage
from stepwell.bench.baseline import Fio, Memcpy, Plain, Terms, can_direct
from stepwell.bench.storage import Subject, command, measure
from stepwell.cache.arena import TRAILER_BYTES, Arena

PAGE = 64 * 1024
PAGES = 128


class Shelf(Storage):
    """Pages in a dictionary, with one thing wrong if asked."""

    def __init__(self, wrong: str = "") -> None:
        self.pages: dict[bytes, bytes] = {}
        self.wrong = wrong
        self.most = 0

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        return [key in self.pages for key in keys]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        if self.wrong != "lies":
            for key, page in zip(keys, into.buffers(), strict=True):
                page[:] = self.pages[key]
        return [DONE] * len(keys)

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        self.pages |= dict(zip(keys, map(bytes, pages.buffers()), strict=True))
        self.most = max(self.most, len(self.pages))
        results: list[PageResult] = [DONE] * len(keys)
        if self.wrong == "fails":
            results[-1] = Failed("full")
        return results[:-1] if self.wrong == "short" else results

    def delete(self, keys: Sequence[PageKey]) -> None:
        for key in keys:
            del self.pages[key]


@pytest.fixture
def arena():
    arena = Arena.create([GroupSpec("bench", Full(), PAGE - TRAILER_BYTES, (0,))], 1, [PAGES])
    np.frombuffer(arena.memory, dtype=np.uint32)[:] = np.arange(PAGES * PAGE // 4, dtype=np.uint32) + 1
    yield arena
    arena.close()


def test_it_measures_put_and_get(arena):
    shelf = Shelf()
    before = bytes(arena.memory)
    baseline = Memcpy(arena.memory, PAGE, PAGES)
    rows = measure("shelf", Subject(shelf, arena, PAGES, lambda: None), baseline, None, PAGE, 3)
    assert [(row.backend, row.page_bytes, row.op, row.baseline) for row in rows] == [
        ("shelf", PAGE, "put", "memcpy"),
        ("shelf", PAGE, "get", "memcpy"),
    ]
    for row in rows:
        assert row.spread[0] <= row.mb_s <= row.spread[1]
        assert row.ratio == pytest.approx(row.mb_s / row.baseline_mb_s, abs=0.01)
    assert shelf.most == PAGES and not shelf.pages, "every round starts without pages"
    assert bytes(arena.memory) == before


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("fails", "did not write, the first for Failed"), ("short", "answers"), ("lies", "did not fill")],
)
def test_a_backend_that_does_not_do_the_work_is_no_result(arena, wrong, words):
    subject = Subject(Shelf(wrong), arena, PAGES, lambda: None)
    with pytest.raises(StepwellError, match=words):
        measure("shelf", subject, Memcpy(arena.memory, PAGE, PAGES), None, PAGE, 1)


@pytest.mark.parametrize("direct", [True, False])
def test_the_plain_baseline_writes_and_reads_every_page(arena, tmp_path, direct):
    if direct and not can_direct(tmp_path):
        pytest.skip("no direct I/O here")
    plain = Plain(Terms(tmp_path, PAGE, PAGES, 3, direct), arena.memory)
    before = bytes(arena.memory)
    assert plain.put() > 0
    assert (tmp_path / "baseline.plain").read_bytes() == before
    arena.memory[:] = bytes(len(arena.memory))
    assert plain.get() > 0
    assert bytes(arena.memory) == before


def test_fio_is_given_the_terms(tmp_path):
    line = " ".join(Fio(Terms(tmp_path, 262144, 64, 4, True)).command)
    for part in ("--bs=262144", "--numjobs=4", "--size=4194304", "--direct=1", "--fallocate=posix"):
        assert part in line


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_runs_on_these_terms(tmp_path):
    fio = Fio(Terms(tmp_path, 65536, 64, 4, can_direct(tmp_path)))
    assert fio.put() > 0
    assert fio.get() > 0


def test_the_command_on_a_backend_without_files():
    done = CliRunner().invoke(
        command, ["--backend", "memory", "--page-kib", "64", "--mib", "4", "--rounds", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["rows"]
    assert [(row["op"], row["baseline"]) for row in rows] == [("put", "memcpy"), ("get", "memcpy")]


def test_the_command_leaves_nothing_behind(tmp_path: Path):
    pytest.importorskip("stepwell_file")
    arguments = ["--backend", "file", "--path", str(tmp_path), "--page-kib", "64", "--mib", "4", "--rounds", "1"]
    done = CliRunner().invoke(command, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["rows"]
    assert {row["baseline"] for row in rows} == {"plain" if shutil.which("fio") is None else "fio"}
    assert not list(tmp_path.iterdir())


def test_a_backend_that_nothing_offers_is_one_sentence():
    from stepwell.cli import root

    done = CliRunner().invoke(root, ["bench", "storage", "--backend", "nowhere"])
    assert done.exit_code == 2
    assert "nothing installed offers it" in done.output and "Traceback" not in done.output
