"""Importing core or listing every installed plugin brings in nothing heavy: that is for an offer's `make`."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "transformers",
    "triton",
    "safetensors",
    "gguf",
    "uvicorn",
    "starlette",
    "prometheus_client",
    "pytest",
}

PROGRAMS = {
    "package": "import stepwell",
    "command line": "import stepwell.cli",
    "config": "import stepwell.config, stepwell.resolve",
    "cache and brain": "import stepwell.cache.cache, stepwell.engine.brain",
    "assembly": "import stepwell.assemble, stepwell.api",
    "every plugin": (
        "from stepwell.plugins import load\n"
        "bad = [r.sentence for r in load().records if not r.loaded]\n"
        "assert not bad, bad"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_heavy_comes_along(program: str) -> None:
    script = f"{program}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stdout.split()) == set()
