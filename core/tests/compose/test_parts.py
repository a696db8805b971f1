"""Settings that hold other pieces: chosen, bound, judged and shown like any section."""

from pathlib import Path

import pytest

from stepwell.builtin.compose import MirrorConfig, TieredConfig
from stepwell.builtin.memory import MemoryConfig
from stepwell.config import Chosen, Config
from stepwell.errors import ConfigError
from stepwell.offers import Capability
from stepwell.plugins import Registry, load
from stepwell_file import FileConfig


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load()


def chosen(registry: Registry, toml: str, tmp_path: Path, *sets: str) -> tuple[Chosen, Config]:
    path = tmp_path / "site.toml"
    path.write_text(toml)
    config = Config.load(path, {"SECRET_PATH": "/x"}, sets)
    choice = config.choose("storage", "storage", registry)
    assert choice is not None
    return choice, config


TIERED = """
[storage]
use = "tiered"
write = "large"
[storage.fast]
use = "memory"
gib = 0.5
[storage.large]
use = "mirror"
[storage.large.first]
use = "file"
path = "/nvme"
[storage.large.second]
use = "memory"
"""


def test_parts_nest_and_each_has_the_settings_of_its_own_offer(registry: Registry, tmp_path: Path) -> None:
    choice, _ = chosen(registry, TIERED, tmp_path, "storage.large.first.threads=2")
    settings = choice.settings
    assert isinstance(settings, TieredConfig) and settings.write == "large" and settings.promote
    assert settings.fast.settings == MemoryConfig(0.5)
    inner = settings.large.settings
    assert isinstance(inner, MirrorConfig)
    assert inner.first.settings == FileConfig(Path("/nvme"), threads=2)
    assert inner.second.settings == MemoryConfig()


def test_what_parts_can_do_together(registry: Registry, tmp_path: Path) -> None:
    choice, _ = chosen(registry, TIERED, tmp_path)
    assert choice.offer.provides == frozenset()
    assert Capability.PERSISTENT in choice.provides, "one part that persists is enough"
    assert Capability.SHARED not in choice.provides, "memory is not shared"


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["storage.fast.gibi=1"], "storage.fast.gibi (--set storage.fast.gibi): no such setting; did you mean gib?"),
        (["storage.fast.gib=many"], "storage.fast.gib (--set storage.fast.gib): 'many' is not of type float"),
        (["storage.large.first.use=fyle"], "storage.large.first.use = 'fyle' (--set storage.large.first.use): "),
        (["storage.fast.use="], "storage.fast.use is required and not set; have "),
        (["storage.fast=fyle"], "storage.fast = 'fyle' (--set storage.fast): "),
        (["storage.slow.use=memory"], "storage.slow (--set storage.slow.use): no such setting; have fast, large"),
        (["storage.write=some"], "storage.write (--set storage.write): 'some' is not one of both, large"),
    ],
)
def test_a_mistake_in_a_part_names_its_place(
    registry: Registry, tmp_path: Path, sets: list[str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(registry, TIERED, tmp_path, *sets)
    assert str(caught.value).startswith(sentence) or sentence in str(caught.value), str(caught.value)


def test_a_part_without_settings_is_said_by_its_name(registry: Registry, tmp_path: Path) -> None:
    short = '[storage]\nuse = "tiered"\nfast = "memory"\n[storage.large]\nuse = "mirror"\nfirst = "memory"\n'
    choice, config = chosen(registry, short, tmp_path, "storage.large.second=memory")
    settings = choice.settings
    assert settings.fast.settings == MemoryConfig()
    assert [part.offer.name for part in (settings.large.settings.first, settings.large.settings.second)] == [
        "memory", "memory",
    ]  # fmt: skip
    shown = {line.key: (line.value, line.origin) for line in config.shown() if line.section == "storage"}
    assert shown["fast"] == ("'memory'", f"{tmp_path / 'site.toml'}:3")
    assert shown["large.second"] == ("memory", "--set storage.large.second")


def test_what_is_no_name_at_all_is_said_to_be_none(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.fast \(.*site\.toml:3\): 5 is not a name; have .*memory"):
        chosen(registry, '[storage]\nuse = "tiered"\nfast = 5\nlarge = "memory"\n', tmp_path)


def test_a_part_that_is_left_out_is_missed(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.second\.use is required and not set; have .*file, memory"):
        chosen(registry, '[storage]\nuse = "mirror"\n[storage.first]\nuse = "memory"\n', tmp_path)


def test_the_environment_reaches_a_part(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(TIERED)
    config = Config.load(path, {"STEPWELL_STORAGE__FAST__GIB": "0.25"})
    choice = config.choose("storage", "storage", registry)
    assert choice is not None and choice.settings.fast.settings.gib == 0.25


def test_parts_are_shown_with_all_their_settings(registry: Registry, tmp_path: Path) -> None:
    _, config = chosen(registry, TIERED, tmp_path)
    shown = {line.key: (line.value, line.origin) for line in config.shown() if line.section == "storage"}
    assert shown["fast.gib"] == ("0.5", f"{path_of(shown)}:7")
    assert shown["fast.use"][0] == "'memory'"
    assert shown["large.first.threads"] == ("4", "default")
    assert shown["promote"] == ("true", "default")
    assert "fast" not in shown and "large" not in shown


def path_of(shown: dict[str, tuple[str, str]]) -> str:
    return shown["write"][1].rpartition(":")[0]
