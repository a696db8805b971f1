"""Versions and markers as PyPA specifies them."""

from __future__ import annotations

import pytest

from stepwell.requires import applies, normal, satisfies, unmet


@pytest.mark.parametrize(
    ("version", "specifier", "met"),
    [
        ("1.10", ">=1.9", True),
        ("1.9", ">=1.10", False),
        ("1.0", "==1.0.0", True),
        ("1.0.1", "==1.0", False),
        ("1.4.7", "==1.4.*", True),
        ("1.5", "==1.4.*", False),
        ("1.5", "!=1.4.*", True),
        ("2.2.5", "~=2.2.3", True),
        ("2.3", "~=2.2.3", False),
        ("2.9", "~=2.2", True),
        ("3.0", "~=2.2", False),
        ("2.0rc1", "<2.0", False),
        ("2.0rc1", "<2.0rc2", True),
        ("1.9", "<2.0", True),
        ("2.0rc1", ">=2.0", False),
        ("2.0.dev3", ">=2.0a1", False),
        ("2.0.post1", ">2.0", False),
        ("2.0.post2", ">2.0.post1", True),
        ("1.0", "<1.0.post1", True),
        ("2.0.post1", ">=2.0", True),
        ("1!0.1", ">5", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.0+cpu", ">=2.13", True),
        ("1.0b2", ">1.0b1", True),
        ("1.0-1", "==1.0.post1", True),
        ("0.5", ">=0.1,<0.2", False),
        ("0.1.5", ">=0.1, <0.2", True),
        ("strange", ">=1", True),
    ],
)
def test_versions(version: str, specifier: str, met: bool) -> None:
    assert satisfies(version, specifier) is met


@pytest.mark.parametrize(
    ("marker", "counts"),
    [
        (None, True),
        ("extra == 'test'", False),
        ("python_version >= '3.9'", True),
        ("python_version < '3.9'", False),
        ("python_version >= '3.9' and extra == 'x'", False),
        ("(python_version < '3' or os_name != 'other') and sys_platform in 'linux darwin win32'", True),
        ("'lin' in sys_platform or 'lin' not in sys_platform", True),
        ("some_new_marker == '1'", False),
        ("not a marker", False),
    ],
)
def test_markers(marker: str | None, counts: bool) -> None:
    assert applies(marker) is counts


def test_unmet_says_what_is_there_instead() -> None:
    have = {"a": "1.0", "b": "2.0"}
    requires = ["a>=2", "b (>=1)", "c[extra]>=1 ; python_version > '3'", "d; extra == 'x'", "e @ file:///e.whl"]
    assert unmet(requires, have.get) == [("a>=2", "1.0"), ("c>=1", "")]


def test_names_compare_as_indexes_do() -> None:
    assert normal("Typing_Extensions") == normal("typing.extensions") == "typing-extensions"
