"""The commands of the README: run where that can be, read by SGLang's own parsers, and the backend made of them."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepwell_sglang import trial

from .conftest import fill, hashes

README = Path(__file__).parents[1] / "README.md"


def test_the_commands_of_the_readme_attach_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    install, write, launch = re.findall(r"```\n(.*?)\n```", README.read_text(), re.S)
    assert {"sglang", "stepwell-sglang", "stepwell-file"} <= set(shlex.split(install))
    monkeypatch.chdir(tmp_path)
    subprocess.run(["sh", "-c", write.replace("/var/lib/stepwell/pages", str(tmp_path / "pages"))], check=True)
    told = _parsed(launch)
    assert told.enable_hierarchical_cache
    extra, *_ = HybridCacheController.parse_storage_backend_extra_config(told.hicache_storage_backend_extra_config)
    pool = trial.mha(told.hicache_mem_layout, page=told.page_size, layers=2)
    store = trial.attach(told.hicache_storage_backend, pool, trial.config(extra))
    try:
        assert store._settings.choice.offer.name == "file"
        fill(pool)
        slots = pool.alloc(2 * pool.page_size)
        driver = trial.Driver(store, pool)
        assert driver.backup(hashes(2), slots) == 2
        assert driver.prefetch(hashes(2), slots) == 2
        assert any((tmp_path / "pages").iterdir())
    finally:
        store.close()


def _parsed(command: str) -> Any:
    from sglang.srt.server_args import ServerArgs

    python, option, module, *rest = shlex.split(command)
    assert (python, option, module) == ("python", "-m", "sglang.launch_server")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(rest)
