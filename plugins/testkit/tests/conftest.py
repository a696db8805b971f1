"""Runs a kit on a subject, in a pytest of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

# Here, so that the runs inside do not import them anew each time.
import stepwell_testkit  # noqa: F401

SUBJECTS = Path(__file__).parent / "subjects"
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run_class(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a test file in which everything of the kits and `subjects` (the modules of `kit_subjects`) is at hand."""
    monkeypatch.syspath_prepend(str(SUBJECTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        head = "import pytest\nfrom stepwell import *\nfrom stepwell_testkit import *\n"
        names = "attention, balance, deciding, dispatch, eviction, ranked, remote, retention, route, schedule, storage"
        subjects = f"from kit_subjects import {names}, write\n"
        pytester.makepyfile(test_subject=head + subjects + source)
        options = ("-p", "stepwell_testkit_pytest", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore")
        return pytester.runpytest_inprocess(*options, *arguments)

    return run


@pytest.fixture
def failing(run_class: Run) -> Callable[..., set[str]]:
    """The names of the kit's tests that fail; a subject that none fails has passed."""

    def run(source: str, *, only: str = "") -> set[str]:
        result = run_class(source, "-rfE", *(["-k", only] if only else []))
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), result.stdout.str()
        assert sum(result.parseoutcomes().values()) > result.parseoutcomes().get("deselected", 0)
        lines = [line for line in result.outlines if line.startswith(("FAILED ", "ERROR "))]
        return {line.split("::")[-1].split(" - ")[0].split("[")[0] for line in lines}

    return run
