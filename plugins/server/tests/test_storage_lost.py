"""A storage that is gone when the engine is started again costs hits; at the first start it is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
from server_process import ADMIN, Server, real, refused, until

SETS = (
    "cache.page_size=4",
    "cache.host_pages=64",
    "write.use=write_through",
    "prefetch.use=wait_complete",
    "prefetch.threshold=4",
    "storage.use=file",
)
PLUGINS = "stepwell-server,stepwell-file"


def ask(server: Server) -> None:
    body = {"model": "sim", "prompt": "the well is deep " * 4, "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text


def restarted(server: Server) -> None:
    """Kill the engine and wait for the next."""
    first = server.pid("engine")
    os.kill(first, signal.SIGKILL)

    def back() -> bool:
        try:
            return server.pid("engine") != first and server.get("/health/ready").status_code == 200
        except (AssertionError, FileNotFoundError):
            return False

    assert until(back, 30), server.words


def test_an_engine_that_is_restarted_without_its_storage_answers_and_has_it_back_later(tmp_path: Path) -> None:
    pages, aside = tmp_path / "pages", tmp_path / "aside"
    with real(tmp_path, *SETS, f"storage.path={pages}", plugins=PLUGINS) as server:
        ask(server)
        assert until(lambda: server.stats()["storage_pages_written"] >= 10)
        pages.rename(aside)
        pages.write_text("no folder")
        restarted(server)
        ask(server)
        told = server.get("/admin/storage").json()
        assert (told["attached"], told["wanted"]) == (False, "file") and "storage.path" in told["why"]
        assert until(lambda: "stepwell_engine_storage_wanted 1.0" in server.get("/metrics").text)
        assert server.words.count("runs without its storage file") == 1
        pages.unlink()
        aside.rename(pages)
        assert until(lambda: server.get("/admin/storage").json()["attached"], 20), server.words
        assert httpx.post(f"{server.url}/admin/flush", headers=ADMIN, timeout=5).status_code == 200
        ask(server)
        assert server.stats()["storage_pages_read"] >= 10, "what was stored before the engine died"
        assert server.process.poll() is None and server.clean()


def test_the_first_start_refuses_a_storage_that_cannot_be_made(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.write_text("no folder")
    sets = ("runner.use=sim", "server.port=0", "cache.device_pages=64", *SETS, f"storage.path={pages}")
    status, words = refused(tmp_path, *sets, plugins=PLUGINS)
    assert status == 2 and "storage.path" in words and "Traceback" not in words
