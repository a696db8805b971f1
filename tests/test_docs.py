"""Documentation that runs: Python and TOML blocks of the READMEs and pages, and the 40-line plugin under its kit."""

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
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
    from stepwell.plugins import load
    from stepwell.settings import ROLES

    tomllib.loads(text)
    file = tmp_path / "block.toml"
    file.write_text(text)
    if 'entry-points."stepwell.v1"' in text:
        return
    variables = {name: name for name in re.findall(r'env = "(\w+)"', text)}
    config, registry = Config.load(file, variables), load()
    for section in tomllib.loads(text):
        if section in ROLES:
            config.choose(section, ROLES[section], registry)
    config.finish(registry)


def shell_lines() -> list[object]:
    found = []
    for page in PAGES:
        consoles = "\n".join(re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S))
        lines = re.findall(r"^\$ (stepwell .*)$", re.sub(r"\\\n\s*", "", consoles), re.M)
        found += [pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}") for line in lines]
    return found


@pytest.mark.parametrize("line", shell_lines())
def test_shell_line_names_real_commands_options_and_settings(line: str) -> None:
    from stepwell.cli import root

    command: click.Command = root
    words = shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    command.make_context("stepwell", words)
    for section, key in re.findall(r"--set (\w+)\.(\w+)", line):
        assert key in settings()[section]


@cache
def settings() -> dict[str, set[str]]:
    """The keys of every section, whichever offer it chooses."""
    from stepwell.plugins import load
    from stepwell.replay.settings import ReplaySettings
    from stepwell.settings import CORE_SECTIONS, ROLES

    registry = load()
    bound = {**CORE_SECTIONS, **registry.sections, "replay": ReplaySettings}
    known = {section: {field.name for field in fields(kind)} for section, kind in bound.items()}
    for section, role in ROLES.items():
        offers = registry.offers(role).values()
        known[section] = {"use", *(field.name for offer in offers for field in fields(offer.config))}
    return known


def test_the_metrics_that_operating_names_are_there() -> None:
    import stepwell
    from stepwell.engine.messages import Pulse
    from stepwell_server.collector import EngineCollector
    from stepwell_server.metrics import Meter

    settings = {"cache": {"host_pages": 8, "device_pages": 64}, "tiers": {"own_process": True}}
    with stepwell.Engine(runner="sim", storage="memory", **settings) as engine:
        values = {name: float(value) for name, value in engine.stats().items() if isinstance(value, (int, float))}

    class Heard:
        restarts = 0
        last_pulse = Pulse(1, 0, 0, values)

        def alive(self, seconds: float) -> bool:
            return True

    collector = EngineCollector(Heard, 1.0, int)  # type: ignore[arg-type]  # it asks no more of an engine
    there = {metric.name for metric in (*collector.collect(), *Meter().registry.collect())}
    page = (ROOT / "docs/pages/operating.md").read_text()
    named = {name.removesuffix("_total") for name in re.findall(r"`(stepwell_\w*[a-z])`", page)}
    assert len(named) > 15
    assert named <= there


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
