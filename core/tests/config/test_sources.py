"""Every source, the order in which they win, and the origin that each value keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stepwell.config import Config
from stepwell.errors import ConfigError

from .conftest import Make


@dataclass(frozen=True)
class Wide:
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def test_later_sources_win_and_origins_stay(make: Make) -> None:
    toml = "[wide]\na = 1\nb = 1\nc = 1\n\n[wide.groups.swa]\npages = 7\n"
    env = {"STEPWELL_WIDE__B": "2", "STEPWELL_WIDE__C": "2", "STEPWELL_WIDE__GROUPS__FULL__PAGES": "9"}
    config = make(toml, env, ["wide.c=3", "wide.groups.swa.rows=1"], **{"wide.e": 4})
    bound = config.bind("wide", Wide)
    groups = {"swa": {"pages": 7, "rows": 1}, "full": {"pages": 9}}
    assert bound == Wide(1, 2, 3, 0, 4, groups)
    assert {f"{line.key}": (line.value, line.origin) for line in config.shown()} == {
        "a": ("1", "site.toml:2"),
        "b": ("2", "$STEPWELL_WIDE__B"),
        "c": ("3", "--set wide.c"),
        "d": ("0", "default"),
        "e": ("4", "argument"),
        "groups.swa.pages": ("7", "site.toml:7"),
        "groups.full.pages": ("9", "$STEPWELL_WIDE__GROUPS__FULL__PAGES"),
        "groups.swa.rows": ("1", "--set wide.groups.swa.rows"),
    }


def test_the_last_of_several_options_wins(make: Make) -> None:
    assert make(sets=["wide.a=1", "wide.a=2"]).bind("wide", Wide).a == 2


def test_a_table_and_a_value_replace_each_other(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"wide.groups \(--set wide.groups\): 'none' is not of type Mapping"):
        make("[wide.groups.swa]\npages = 7", sets=["wide.groups=none"]).bind("wide", Wide)
    with pytest.raises(ConfigError, match=r"wide.a \(--set wide.a.b\): {'b': '1'} is not of type int"):
        make("[wide]\na = 1", sets=["wide.a.b=1"]).bind("wide", Wide)


@pytest.mark.parametrize(
    ("toml", "at", "line"),
    [
        ("[wide]\n# note\na = 'x'", "a", 3),
        ("wide.a = 'x'", "a", 1),
        ("[ wide ]\n'a' = 'x'", "a", 2),
        ("\n\nwide = { a = 'x' }", "a", 3),
        ("[cache]\na = 1\n[wide]\n\na = 'x'", "a", 5),
        ("[wide.groups]\nswa.pages = 'x'", "groups.swa.pages", 2),
        ("[wide.groups.'s.w']\npages = 'x'", "groups.s.w.pages", 2),
    ],
)
def test_errors_name_the_line(make: Make, toml: str, at: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        make(toml).bind("wide", Wide)
    assert str(caught.value) == f"wide.{at} (site.toml:{line}): 'x' is not of type int"


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("[cache\n", "site.toml:1: "),
        ("[cache]\npage_size 16\n", "site.toml:2: "),
        ("[cache]\na = 1\na = 2\n", "site.toml:"),
        ("page_size = 3\n", "page_size (site.toml:1): every setting lives in a section, such as [cache]"),
        ("[cache]\n\n[[storage]]\nuse = 'x'", "storage (site.toml:3): write [storage] once, not [[storage]]"),
    ],
)
def test_a_file_with_mistakes_names_file_and_line(make: Make, toml: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(toml)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000])
def test_a_file_that_no_parser_can_read_is_one_sentence(make: Make, value: str) -> None:
    with pytest.raises(ConfigError, match=r"^site\.toml: .+"):
        make(f"[wide]\na = {value}\n")
    with pytest.raises(ConfigError, match=r"^wide\.a \(--set wide\.a\): "):
        make(sets=[f"wide.a={value}"]).bind("wide", Wide)


def test_b153_a_path_from_a_variable_that_is_not_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the path of the config file is empty; is the variable that holds it set"):
        Config.load(Path(), {})
    with pytest.raises(ConfigError, match=r"gone.toml: cannot read this config file: No such file"):
        Config.load(tmp_path / "gone.toml", {})
    with pytest.raises(ConfigError, match="cannot read this config file: Is a directory"):
        Config.load(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"latin.toml: is not UTF-8 text \(byte 5\)"):
        Config.load(tmp_path / "latin.toml", {})


@pytest.mark.parametrize("text", ["", "cache", "cache.page_size", "page_size=3", ".a=1", "cache.=1"])
def test_a_malformed_option_says_how_to_write_it(make: Make, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(sets=[text])
    assert str(caught.value) == f"--set {text}: write it as section.key=value"


def test_a_value_may_hold_equals_signs_and_dots(make: Make) -> None:
    assert make(sets=["storage.use=a=b.c"]).use("storage", "") == "a=b.c"


def test_a_variable_with_one_underscore_is_not_passed_over(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make(env={"STEPWELL_CACHE_PAGE_SIZE": "3"})
    assert "$STEPWELL_CACHE_PAGE_SIZE" in str(caught.value)
    assert str(caught.value).endswith("did you mean STEPWELL_CACHE__PAGE_SIZE?")


def test_variables_of_other_purposes_are_left_alone(make: Make) -> None:
    env = {"STEPWELL_TESTS": "1", "STEPWELL_DISABLE": "a, b c", "STEPWELL_PLUGINS": "d", "OTHER__X": "1"}
    config = make(env=env)
    assert config.shown() == []
    assert config.disabled == {"a", "b", "c"}
    assert config.only == {"d"}
    assert make().only is None
    assert make(env={"STEPWELL_PLUGINS": ""}).only == frozenset()


def test_disabled_plugins_come_from_the_users_file_too(make: Make, tmp_path: Path) -> None:
    (tmp_path / "stepwell").mkdir()
    (tmp_path / "stepwell" / "disabled").write_text("one\ntwo\n")
    assert make(env={"XDG_CONFIG_HOME": str(tmp_path), "STEPWELL_DISABLE": "three"}).disabled == {"one", "two", "three"}
    (tmp_path / "home").mkdir()
    assert make(env={"HOME": str(tmp_path / "home")}).disabled == frozenset()
