"""Documentation that runs: Python and TOML blocks of the READMEs and pages, and the 40-line plugin under its kit."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/pages/*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]
PAGES += [ROOT / "core/README.md", ROOT / "kernels/README.md"]


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S), 1):
            found.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_block_runs(text: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_block_names_real_settings(text: str, tmp_path: Path) -> None:
    from stepwell.config import Config
    from stepwell.plugins import KINDS, load

    tomllib.loads(text)
    file = tmp_path / "block.toml"
    file.write_text(text)
    if 'entry-points."stepwell.v1"' in text:
        return
    config, registry = Config.load(file, {}), load()
    for section in tomllib.loads(text):
        if section in KINDS:
            config.choose(section, section, registry)


KIT = """
import pytest
from scratch import ScratchConfig, ScratchStorage
from stepwell_testkit import StorageKit

class TestScratch(StorageKit):
    @pytest.fixture
    def storage(self, tmp_path, context):
        return ScratchStorage(ScratchConfig(tmp_path / "pages"), context)
"""


def test_the_plugin_of_the_readme_passes_its_kit(tmp_path: Path) -> None:
    text = next(
        b
        for b in re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
        if "hookimpl" in b
    )
    (tmp_path / "scratch.py").write_text(text)
    (tmp_path / "test_scratch.py").write_text(KIT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
