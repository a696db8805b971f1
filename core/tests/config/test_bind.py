"""Binding a section to a frozen dataclass: every type, and the text of every error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from stepwell.config import Config, Secret
from stepwell.errors import ConfigError
from stepwell.settings import CacheSettings, RankSettings

from .conftest import Make


class Mode(Enum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Inner:
    depth: int
    name: str = "inner"


@dataclass(frozen=True)
class Everything:
    text: str = ""
    whole: int = 0
    real: float = 0.0
    flag: bool = False
    path: Path = Path()
    maybe: int | None = None
    old_maybe: Optional[float] = None  # noqa: UP045 - third parties write it
    mixed: int | str = 0
    choice: Literal["a", "b", 3] = "a"
    mode: Mode = Mode.FAST
    names: tuple[str, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    items: list[int] = field(default_factory=list)
    kinds: frozenset[str] = frozenset()
    series: Sequence[int] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, object] = field(default_factory=dict)
    anything: Any = None
    noted: Annotated[int, "of something"] = 0
    inner: Inner | None = None
    token: Secret | None = None
    keys: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class Folder:
    folder: Path


FITS = [
    ("text = 'x'", "text=x", "x"),
    ("text = ''", "text=", ""),
    ("whole = 5", "whole=5", 5),
    ("whole = -5", "whole=-5", -5),
    ("real = 5", "real=5", 5.0),
    ("real = 1e3", "real=1e3", 1000.0),
    ("flag = true", "flag=true", True),
    ("flag = true", "flag=Yes", True),
    ("flag = false", "flag=0", False),
    ("path = '/tmp/x'", "path=/tmp/x", Path("/tmp/x")),
    ("maybe = 3", "maybe=3", 3),
    (None, "maybe=none", None),
    (None, "old_maybe=", None),
    ("mixed = 3", "mixed=3", 3),
    ("mixed = 'x'", "mixed=x", "x"),
    ("choice = 'b'", "choice=b", "b"),
    ("choice = 3", "choice=3", 3),
    ("mode = 'safe'", "mode=safe", Mode.SAFE),
    ("names = ['a', 'b']", "names=a, b", ("a", "b")),
    ("names = []", "names=", ()),
    ("names = ['a,b']", "names=['a,b']", ("a,b",)),
    ("pair = [1, 2]", "pair=1,2.0", (1, 2.0)),
    ("items = [1, 2]", "items=1,2", [1, 2]),
    ("kinds = ['a', 'a']", "kinds=a,a", frozenset("a")),
    ("series = [1]", "series=1", (1,)),
    ("table.x = 1", "table.x=1", {"x": 1}),
    ("free.x.y = 1", "free.x.y=1", {"x": {"y": 1}}),
    ("free.x = 'b c'", "free.x=b c", {"x": "b c"}),
    ("anything = [1]", "anything=[1]", [1]),
    ("noted = 2", "noted=2", 2),
    ("inner = { depth = 2 }", "inner.depth=2", Inner(2)),
    ("token = 'abc'", "token=abc", "abc"),
]


@pytest.mark.parametrize(("toml", "text", "value"), FITS)
def test_values_and_text_become_what_the_field_declares(make: Make, toml: str | None, text: str, value: object) -> None:
    key = text.partition("=")[0].partition(".")[0]
    sources = [make(sets=[f"all.{text}"])]
    name, _, tail = text.partition("=")
    sources.append(make(env={f"STEPWELL_ALL__{name.replace('.', '__').upper()}": tail}))
    if toml is not None:
        sources.append(make(f"[all]\n{toml}"))
    for config in sources:
        bound = getattr(config.bind("all", Everything), key)
        assert bound == value
        assert type(bound) in (type(value), Secret)


MISFITS = [
    ("text = 5", "text (site.toml:2): 5 is not of type str"),
    ("whole = 5.0", "whole (site.toml:2): 5.0 is not of type int"),
    ("whole = true", "whole (site.toml:2): True is not of type int"),
    ("whole = '5'", "whole (site.toml:2): '5' is not of type int"),
    ("real = '5'", "real (site.toml:2): '5' is not of type float"),
    ("real = nan", "real (site.toml:2): nan is not of type float"),
    ("flag = 1", "flag (site.toml:2): 1 is not of type bool"),
    ("flag = 'yes'", "flag (site.toml:2): 'yes' is not of type bool"),
    ("real = 1" + "0" * 400, "real (site.toml:2): is larger than any float"),
    ("path = 5", "path (site.toml:2): 5 is not of type Path"),
    ("path = '~nobody-here/x'", "path (site.toml:2): '~nobody-here/x' begins with a user who has no home folder here"),
    ('path = "a\\u0000b"', "path (site.toml:2): 'a\\x00b' has a NUL in it, which no file or folder has"),
    ("whole = 'redis://me:s3/cr@t@well:1'", "whole (site.toml:2): 'redis://me:***@well:1' is not of type int"),
    ("maybe = 'x'", "maybe (site.toml:2): 'x' is not of type int | None"),
    ("old_maybe = 'x'", "old_maybe (site.toml:2): 'x' is not of type float | None"),
    ("choice = 'z'", "choice (site.toml:2): 'z' is not one of a, b, 3"),
    ("choice = '3'", "choice (site.toml:2): '3' is not one of a, b, 3"),
    ("mode = 'slow'", "mode (site.toml:2): 'slow' is not one of fast, safe"),
    ("names = 'a'", "names (site.toml:2): 'a' is not of type tuple[str, ...]"),
    ("names = [1]", "names (site.toml:2): 1 is not of type str"),
    ("pair = [1]", "pair (site.toml:2): [1] has 1 entries, not 2"),
    ("table.x = 'a'", "table.x (site.toml:2): 'a' is not of type int"),
    ("table = 5", "table (site.toml:2): 5 is not of type Mapping[str, int]; write all.table.NAME=VALUE"),
    ("inner.depht = 2", "inner.depht (site.toml:2): no such setting; did you mean depth?"),
    ("inner.name = 'x'", "inner.depth is required and not set"),
    ("inner.depth = 'x'", "inner.depth (site.toml:2): 'x' is not of type int"),
    ("wohle = 5", "wohle (site.toml:2): no such setting; did you mean whole?"),
]


@pytest.mark.parametrize(("toml", "text"), MISFITS)
def test_what_does_not_fit_is_an_error_with_its_origin(make: Make, toml: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(f"[all]\n{toml}").bind("all", Everything)
    assert str(caught.value) == f"all.{text}"


@pytest.mark.parametrize("text", ["whole=lots", "whole=1.5", "real=lots", "flag=maybe", "maybe=x", "pair=1", "mode=x"])
def test_text_that_does_not_fit_is_an_error_with_its_origin(make: Make, text: str) -> None:
    key, _, value = text.partition("=")
    with pytest.raises(ConfigError, match=rf"^all\.{key} \(--set all\.{key}\): "):
        make(sets=[f"all.{text}"]).bind("all", Everything)
    with pytest.raises(ConfigError, match=rf"^all\.{key} \(\$STEPWELL_ALL__{key.upper()}\): "):
        make(env={f"STEPWELL_ALL__{key.upper()}": value}).bind("all", Everything)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("{gold=4}", "all.table.gold=4"),
        ('{ gold = 4, "free" = 1 }', "all.table.gold=4"),
        ("{gold=", "all.table.NAME=VALUE"),
        ("{}", "all.table.NAME=VALUE"),
        ("5", "all.table.NAME=VALUE"),
    ],
)
def test_a_table_given_whole_is_told_how_its_entries_are_written(make: Make, text: str, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(sets=[f"all.table={text}"]).bind("all", Everything)
    assert str(caught.value).endswith(f"{text!r} is not of type Mapping[str, int]; write {instead}")


def test_what_is_required_must_be_there(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make().bind("storage", Inner)
    assert str(caught.value) == "storage.depth is required and not set"


@dataclass(frozen=True)
class Checked:
    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        if self.low < 1:
            raise ValueError(f"low: {self.low} is less than 1")
        if self.low > self.high:
            raise ValueError("low and high cross")


def test_a_dataclass_that_checks_itself_speaks_of_its_field(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make(sets=["x.low=0"]).bind("x", Checked)
    assert str(caught.value) == "x.low (--set x.low): 0 is less than 1"
    with pytest.raises(ConfigError) as caught:
        make("[x]\nlow = 3").bind("x", Checked)
    assert str(caught.value) == "x: low and high cross"


SECRET = "s3cr3t"


def test_a_secret_is_read_late_and_never_printed(make: Make) -> None:
    config = make('[all]\ntoken = { env = "TOKEN" }\ntext = { env = "TOKEN" }', {"TOKEN": SECRET})
    bound = config.bind("all", Everything)
    assert bound.token == bound.text == SECRET
    assert SECRET not in repr(bound)
    assert SECRET not in f"{bound}"
    lines = {line.key: line.value for line in config.shown()}
    assert lines["token"] == lines["text"] == '{ env = "TOKEN" }'
    assert SECRET not in repr(config.shown())


def test_a_secret_written_down_is_not_printed_either(make: Make) -> None:
    config = make(sets=[f"all.token={SECRET}"])
    assert config.bind("all", Everything).token == SECRET
    assert SECRET not in repr(config.shown())


def test_a_secret_that_nobody_set_is_shown_as_not_set(make: Make) -> None:
    """And not as one that is hidden."""
    config = make()
    config.bind("ranks", RankSettings)
    assert {line.key: line.value for line in config.shown()}["secret"] == "(not set)"


def test_a_table_of_secrets_is_printed_by_its_names_alone(make: Make) -> None:
    config = make(f'[all.keys]\nann = "{SECRET}"\nbob = {{ env = "TOKEN" }}', {"TOKEN": SECRET})
    unbound = {line.key: line.value for line in config.shown()}
    assert config.bind("all", Everything).keys == {"ann": SECRET, "bob": SECRET}
    bound = {line.key: line.value for line in config.shown()}
    assert bound["keys.ann"] == unbound["keys.ann"] == "'***'"
    assert bound["keys.bob"] == unbound["keys.bob"] == '{ env = "TOKEN" }'


def test_what_sounds_secret_is_not_printed_where_nobody_bound_it(make: Make) -> None:
    config = make('[nobody]\napi_key = "hunter2"\nToken = "hunter2"\nport = 1\nkeys_kept = "all"\n')
    shown = {line.key: line.value for line in config.shown()}
    assert shown == {"api_key": "'***'", "Token": "'***'", "port": "1", "keys_kept": "'all'"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:s3cr3t@well:1/2", "redis://me:***@well:1/2"),
        ("redis://:s3cr/3t@well", "redis://:***@well"),
        ("http://me:s3@cr3t@well/x", "http://me:***@well/x"),
        ("http://well:80/x", "http://well:80/x"),
    ],
)
def test_a_password_in_an_address_is_not_printed(make: Make, url: str, shown: str) -> None:
    for config in (make(f"[all]\ntext = '{url}'"), make(sets=[f"all.text={url}"])):
        [unbound] = config.shown()
        config.bind("all", Everything)
        bound = {line.key: line.value for line in config.shown()}["text"]
        assert unbound.value.strip("'") == bound.strip("'") == shown


def test_a_path_is_printed_as_text_and_not_empty(make: Make) -> None:
    config = make('[some]\nfolder = "pages"\n')
    config.bind("some", Folder)
    assert [line.value for line in config.shown()] == ["'pages'"]
    for empty in (make('[some]\nfolder = ""\n'), make(sets=["some.folder="])):
        with pytest.raises(ConfigError, match=r"some\.folder .* is empty"):
            empty.bind("some", Folder)


def test_a_secret_may_be_a_number_and_an_error_about_it_hides_it(make: Make) -> None:
    toml = '[all]\nwhole = { env = "PIN" }'
    assert make(toml, {"PIN": "1234"}).bind("all", Everything).whole == 1234
    with pytest.raises(ConfigError) as caught:
        make(toml, {"PIN": SECRET}).bind("all", Everything)
    assert str(caught.value) == "all.whole (site.toml:2): '***' is not of type int"


def test_a_secret_that_is_not_set_names_the_variable(make: Make) -> None:
    config = make('[all]\ntoken = { env = "TOKEN" }')
    with pytest.raises(ConfigError) as caught:
        config.bind("all", Everything)
    assert str(caught.value) == "all.token (site.toml:2): the variable $TOKEN is not set"


def test_binding_leaves_the_config_as_it_was(make: Make) -> None:
    config = make(sets=["all.whole=3"])
    assert config.bind("all", Everything) == config.bind("all", Everything)
    assert isinstance(config, Config)


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "-inf"])
def test_a_size_that_nobody_can_mean_is_refused(value):
    with pytest.raises(ConfigError, match=r"cache\.device_gib"):
        Config.load(None, {}, [f"cache.device_gib={value}"]).bind("cache", CacheSettings)
    with pytest.raises(ConfigError, match="more than can be meant"):
        Config.load(None, {}, ["cache.device_pages=2147483648"]).bind("cache", CacheSettings)
