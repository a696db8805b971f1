"""What every kit shares: which fixtures it needs, what an author claims, and what is refused.

A kit that can be emptied without notice proves nothing. A test of a kit may be replaced only by one that is expected to
fail and says why, and a class without the kit's fixture is refused when it is collected.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import ClassVar

import pytest

from stepwell import Capability, StepwellError


class KitError(StepwellError, TypeError):
    """A subclass of a kit that would not test what the kit promises."""


class Kit:
    """Base of the kits."""

    required: ClassVar[tuple[str, ...]] = ()
    """Fixtures that the author's class, or a base of it, defines."""
    provides: ClassVar[frozenset[Capability]] = frozenset()
    """What the offer claims: selects tests, which fail where a claim does not hold. Repeat `Offer.provides` here."""

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        problems = _replaced(cls)
        if problems:
            raise KitError("\n".join(problems))

    @classmethod
    def kit_refusals(cls) -> list[str]:
        """Why this class may not be run as it stands; asked when pytest collects it."""
        missing = [name for name in cls.kit_fixtures() if not _is_fixture(cls, name)]
        return _replaced(cls) + [f"{cls.__name__}: define the fixture `{name}` in the class" for name in missing]

    @classmethod
    def kit_fixtures(cls) -> tuple[str, ...]:
        """The fixtures needed, given what is claimed."""
        return cls.required

    def need(self, capability: Capability) -> None:
        """Skip the test where the capability is not claimed."""
        if capability not in self.provides:
            pytest.skip(f"does not claim {capability.name}")


def _replaced(cls: type[Kit]) -> list[str]:
    problems = []
    for name, own in _tests(cls).items():
        found = inspect.getattr_static(cls, name)
        if found is own:
            if _excused(own):
                problems.append(f"{cls.__name__}: marks {name} of the kit itself; define it anew and mark that")
        elif not _excused(found):
            problems.append(f"{cls.__name__}: replaces {name} of the kit without pytest.mark.xfail(reason=...)")
    return problems


def _tests(cls: type[Kit]) -> dict[str, object]:
    """The tests as the kits define them, whatever stands in front of them."""
    kits = [base for base in reversed(cls.__mro__) if base.__module__.split(".")[0] == __package__]
    return {name: test for kit in kits for name, test in vars(kit).items() if name.startswith("test_")}


def _excused(test: object) -> bool:
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)


def _is_fixture(cls: type[Kit], name: str) -> bool:
    """Whether `name` is there and not a method whose author forgot the decorator."""
    found = inspect.getattr_static(cls, name, None)
    return found is not None and not isinstance(found, FunctionType)
