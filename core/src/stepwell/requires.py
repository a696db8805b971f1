"""Whether what a distribution requires is installed.

pip checks this at install time; `--no-deps` and later upgrades happen all the same, and then a plugin fails in the
middle of serving instead of at start. Understands versions and markers as PyPA specifies them, as far as they occur
in requirements; a requirement that it cannot read is left to pip.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest

Key = tuple[int, tuple[int, ...], tuple[str, int], int, int]

_VERSION = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)[-_.]?(?:(a|b|c|rc|alpha|beta|pre|preview)[-_.]?(\d*))?"
    r"(?:-(\d+)|[-_.]?(?:post|rev|r)[-_.]?(\d*))?([-_.]?dev[-_.]?(\d*))?(?:\+[a-z0-9._-]+)?",
    re.IGNORECASE,
)
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*\(?([^;()@]*)\)?\s*(?:;(.*))?")
_CLAUSE = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*([^\s,]+)\s*")
_PRE = {"a": "a", "alpha": "a", "b": "b", "beta": "b", "c": "rc", "rc": "rc", "pre": "rc", "preview": "rc"}
_FINAL = ("z", 0)
_NEVER = -1
_LAST = sys.maxsize


def unmet(requires: Iterable[str], version_of: Callable[[str], str | None]) -> list[tuple[str, str]]:
    """The requirements that the environment does not meet, each with what is there instead (empty: nothing)."""
    found = []
    for line in requires:
        match = _REQUIREMENT.fullmatch(line)
        if match is None or not applies(match[3]):
            continue
        have = version_of(match[1])
        wanted = match[1] + match[2].strip()
        if have is None:
            found.append((wanted, ""))
        elif not satisfies(have, match[2]):
            found.append((wanted, have))
    return found


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def satisfies(version: str, specifier: str) -> bool:
    """Whether `version` is within all clauses of `specifier`; one that cannot be read counts as met."""
    have = _key(version)
    return have is None or all(
        _within(have, match[1], match[2]) for match in map(_CLAUSE.fullmatch, specifier.split(",")) if match
    )


def _within(have: Key, operator: str, text: str) -> bool:
    bound = _key(text.removesuffix(".*"))
    if bound is None:
        return True
    if operator in ("==", "!=") and text.endswith(".*"):
        return (_cut(have, bound) == bound[:2]) is (operator == "==")
    if operator == "~=":
        front = (bound[0], bound[1][:-1])
        return _order(have, bound) >= 0 and (have[0], _padded(have[1], len(front[1]))) == front
    order = _order(have, bound)
    if _same_release(have, bound) and bound[2:] == (_FINAL, _NEVER, _LAST):
        if operator == "<" and _before(have):
            return False  # 2.0rc1 is before 2.0, yet nobody who writes <2.0 wants it
        if operator == ">" and have[3] != _NEVER:
            return False  # and 2.0.post1 is no more than 2.0 with another label
    return _holds(operator, order)


def _key(text: str) -> Key | None:
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    epoch, release, pre, number, dash, post, dev, dev_number = match.groups()
    numbers = tuple(int(part) for part in release.split("."))
    has_post = dash is not None or post is not None
    stage = (_PRE[pre.lower()], int(number or 0)) if pre else _FINAL
    if dev and not pre and not has_post:
        stage = ("", 0)
    after = int(dash or post or 0) if has_post else _NEVER
    return int(epoch or 0), numbers, stage, after, int(dev_number or 0) if dev else _LAST


def _before(version: Key) -> bool:
    """Whether it is a pre-release."""
    return version[2] != _FINAL or version[4] != _LAST


def _order(one: Key, other: Key) -> int:
    pairs = list(zip_longest(one[1], other[1], fillvalue=0))
    left = (one[0], [a for a, _ in pairs], *one[2:])
    right = (other[0], [b for _, b in pairs], *other[2:])
    return (left > right) - (left < right)


def _padded(release: tuple[int, ...], size: int) -> tuple[int, ...]:
    return (release + (0,) * size)[:size]


def _cut(have: Key, bound: Key) -> tuple[int, tuple[int, ...]]:
    return have[0], _padded(have[1], len(bound[1]))


def _same_release(one: Key, other: Key) -> bool:
    size = max(len(one[1]), len(other[1]))
    return one[0] == other[0] and _padded(one[1], size) == _padded(other[1], size)


# --- markers ---


def applies(marker: str | None) -> bool:
    """Whether a requirement with this marker counts here, without any extra; one that cannot be read does not."""
    if marker is None:
        return True
    try:
        return _truth(ast.parse(marker.strip(), mode="eval").body, _environment())
    except (SyntaxError, ValueError, KeyError):
        return False


def _environment() -> Mapping[str, str]:
    return {
        "extra": "",
        "implementation_name": sys.implementation.name,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def _truth(node: ast.expr, names: Mapping[str, str]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(part, names) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(part, names) for part in parts)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _compare(_text(left, names), operator, _text(right, names), _about_version(left, right))
    raise ValueError("not a marker")


def _about_version(*sides: ast.expr) -> bool:
    return any(isinstance(side, ast.Name) and side.id.startswith("python_") for side in sides)


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=str() as text):
            return text
    raise ValueError("not a marker")


def _compare(left: str, operator: ast.cmpop, right: str, version: bool) -> bool:
    match operator:
        case ast.In():
            return left in right
        case ast.NotIn():
            return left not in right
    sign = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}[type(operator)]
    if version:
        return satisfies(left, sign + right)
    order = (left > right) - (left < right)
    return _holds(sign, order)


def _holds(sign: str, order: int) -> bool:
    match sign:
        case "<" | "<=":
            return order < 0 or (order == 0 and sign == "<=")
        case ">" | ">=":
            return order > 0 or (order == 0 and sign == ">=")
    return (order == 0) is (sign != "!=")
