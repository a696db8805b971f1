"""Pieces among an offer's settings: chosen by name, below the field or in the place of a word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.offers import Part
from stepwell.plugins import Registry
from stepwell.register import kind_of

from .conftest import Make
from .test_choose import Install, install  # noqa: F401 - a fixture

RUNNER = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any, Literal
from stepwell import Offer, PagedAttention, Part, hookimpl

@dataclass(frozen=True)
class Config:
    attention: Literal["auto", "plain"] | Part[PagedAttention[Any]] = "auto"

@hookimpl
def stepwell_runners():
    return [Offer("able", print, Config)]
"""
FAST = """
from dataclasses import dataclass
from stepwell import Offer, hookimpl

@dataclass(frozen=True)
class Config:
    level: int = 1

@hookimpl
def stepwell_attentions():
    return [Offer("fast", print, Config), Offer("faster", print, missing=lambda: "it needs wings")]
"""


@pytest.fixture
def chosen(make: Make, install: Install) -> Callable[..., tuple[object, Config]]:  # noqa: F811
    registry: Registry = install({"able": RUNNER, "fast": FAST})

    def choose(toml: str, **more: object) -> tuple[object, Config]:
        config = make('[runner]\nuse = "able"\n' + toml, **more)
        return config.choose_runner(registry).settings.attention, config

    return choose


def test_words_are_words(chosen: Callable[..., tuple[object, Config]]) -> None:
    assert chosen("")[0] == "auto"
    assert chosen('attention = "plain"')[0] == "plain"
    assert chosen("", env={"STEPWELL_RUNNER__ATTENTION": "plain"})[0] == "plain"


@pytest.mark.parametrize(
    ("toml", "more", "level"),
    [
        ('attention = "fast"', {}, 1),
        ("", {"sets": ["runner.attention=fast"]}, 1),
        ('[runner.attention]\nuse = "fast"\nlevel = 5', {}, 5),
        ('[runner.attention]\nuse = "fast"', {"env": {"STEPWELL_RUNNER__ATTENTION__LEVEL": "3"}}, 3),
    ],
)
def test_another_name_is_that_of_an_offer(
    chosen: Callable[..., tuple[object, Config]], toml: str, more: dict[str, object], level: int
) -> None:
    part, config = chosen(toml, **more)
    assert isinstance(part, Part)
    assert (part.offer.name, part.settings.level) == ("fast", level)  # type: ignore[attr-defined]
    shown = {line.key: line.value for line in config.shown()}
    assert shown["attention.level"] == str(level)
    assert "fast" in shown.get("attention", shown.get("attention.use", ""))


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        (
            'attention = "fst"',
            "nothing installed offers it; have fast, faster; it may also be auto or plain",
        ),
        (
            'attention = "faster"',
            "runner.attention = 'faster' (site.toml:3): it needs wings; it may also be auto",
        ),
        ('[runner.attention]\nuse = "fast"\nlevle = 5', "did you mean level?"),
        ("attention = 3", "runner.attention (site.toml:3): 3 is not a name; have fast, faster, auto, plain"),
        ("[runner.attention]\nuse = 3", "runner.attention.use (site.toml:4): 3 is not a name; have fast, faster"),
        (
            "[runner.attention]\nlevel = 5",
            "runner.attention.use is required and not set; have fast, faster, auto, plain",
        ),
    ],
)
def test_mistakes_are_said_with_what_there_is(
    chosen: Callable[..., tuple[object, Config]], toml: str, text: str
) -> None:
    with pytest.raises(ConfigError) as told:
        chosen(toml)
    assert text in str(told.value)


def test_a_role_of_nobody_is_of_the_kind_around_it() -> None:
    assert kind_of(int, "storage") == "storage"
