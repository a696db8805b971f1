"""Run a kit on an installed offer, with no test file: `stepwell doctor --conform NAME`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from uuid import uuid4

import numpy as np
import pytest

from stepwell import Capability, ConfigError, Dispatcher, Offer
from stepwell_testkit.context import KitContext
from stepwell_testkit.pool import Processes

HEAD = """\
import pytest
from stepwell import Capability
from stepwell_testkit import {kit}, NumpyAdapter, TorchAdapter


class TestOffer({kit}):
    provides = frozenset({{{provides}}})
    {more}

"""
ONE = """\
    @pytest.fixture
    def {fixture}(self, conform_make):
        return conform_make()
"""
AGAIN = """\

    @pytest.fixture
    def reopen(self, conform_make):
        return conform_make
"""
RANKS = """\
    adapter = {adapter}()
    lost_s = {lost_s}

    @pytest.fixture
    def world(self, conform_world):
        return conform_world
"""
TEXTS: Mapping[str, tuple[str, str]] = {
    "storage": ("StorageKit", ONE.format(fixture="storage")),
    "evict": ("EvictionKit", ONE.format(fixture="policy")),
    "write": ("WriteKit", ONE.format(fixture="policy")),
    "retain": ("RetentionKit", ONE.format(fixture="policy")),
    "schedule": ("ScheduleKit", ONE.format(fixture="policy")),
    "route": ("RouteKit", ONE.format(fixture="policy")),
    "dispatch": ("DispatchKit", RANKS),
    "balance": ("BalanceKit", ONE.format(fixture="balancer")),
}
"""By the kind of the offer."""

RANKS_OF_A_KIT = 4
LOST_S = 150.0
"""What a backend's own limit for silent ranks may be; its default is rarely a short one."""

Settings = object | Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one test of a kit; `began` is reported before the others."""

    test: str
    outcome: Literal["began", "passed", "failed", "skipped"]
    why: str = ""
    """The first line of a failure, or why it was skipped."""


Report = Callable[[Verdict], object]


def conform(
    kind: str,
    offer: Offer[Any],
    settings: Settings,
    tmp_path: Path,
    *,
    limit_bytes: int = 0,
    report: Report | None = None,
) -> int:
    """Run the kit of `kind` on what `offer` makes; answers pytest's exit status, 0 where the offer conforms.

    `kind` is one of `storage`, `evict`, `write`, `retain`, `schedule`, `route`, `dispatch`, `balance`. `settings` is
    an instance of `offer.config`, or makes one for a folder of each test's own: give that for a store with a folder
    among its settings. EVICTS is tested only where `limit_bytes` says when a store of these settings is full. The test
    file that runs, and all that its tests write, stands in `tmp_path` afterwards. `report` hears of each test.
    """
    if kind not in TEXTS:
        raise ConfigError(f"there is no conformance kit for {kind!r}; there are kits for {', '.join(TEXTS)}")
    kit, body = TEXTS[kind]
    provides = tested(offer, limit_bytes)
    if kind == "storage" and provides & {Capability.PERSISTENT, Capability.SHARED}:
        body += AGAIN
    if kind == "dispatch":
        body = body.format(
            adapter="TorchAdapter" if _takes_torch(offer, settings, tmp_path) else "NumpyAdapter", lost_s=LOST_S
        )
    head = HEAD.format(
        kit=kit,
        provides=", ".join(f"Capability.{flag.name}" for flag in sorted(provides, key=lambda flag: flag.name)),
        more=f"limit_bytes = {limit_bytes}\n    closes = True" if kind == "storage" else "",
    )
    # A name of its own: a second run in this process would be given the first one's module again.
    test = tmp_path / f"test_conform_{uuid4().hex}.py"
    test.write_text(head + body)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    arguments = [f"--rootdir={tmp_path}", f"--confcutdir={tmp_path}", f"-c={tmp_path / 'pytest.ini'}"]
    arguments += [f"--basetemp={tmp_path / 'tests'}"]
    # It also finds the pytest plugin imported already, which is no matter.
    arguments += ["--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-q"]
    plugins = ["-p", "no:cacheprovider", "-p", "stepwell_testkit_pytest"]
    made = partial(offer.make, settings(tmp_path) if callable(settings) else settings)
    with Processes(
        made, RANKS_OF_A_KIT, tmp_path, limit_s=LOST_S + 10
    ) as processes:  # none is started where no test asks for them
        hearers = [_Subject(offer, settings, processes), *([_Hearer(report)] if report else [])]
        return int(pytest.main([*arguments, *plugins, str(test)], plugins=hearers))


def tested(offer: Offer[Any], limit_bytes: int = 0) -> frozenset[Capability]:
    """The claims of an offer that a kit tests."""
    untested = {Capability.APART, Capability.GRAPH_SAFE, *(() if limit_bytes else (Capability.EVICTS,))}
    return offer.provides - untested


def _takes_torch(offer: Offer[Any], settings: Settings, folder: Path) -> bool:
    """Whether a dispatcher is declared to be of other tensors than arrays, as `Dispatcher[Tensor]` says it."""
    made = offer.make(settings(folder) if callable(settings) else settings, KitContext(folder))
    made.close()
    bases = [base for cls in type(made).__mro__ for base in getattr(cls, "__orig_bases__", ())]
    tensor = next((get_args(base)[0] for base in bases if get_origin(base) is Dispatcher), np.ndarray)
    return (get_origin(tensor) or tensor) is not np.ndarray


@dataclass(frozen=True)
class _Hearer:
    """Passes on what pytest reports, one verdict a test whatever its phases say."""

    report: Report
    _worst: dict[str, Verdict] = field(default_factory=dict)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report(Verdict(_test(nodeid), "began"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _test(report.nodeid)
        if report.outcome != "passed" and test not in self._worst:
            self._worst[test] = Verdict(test, report.outcome, _why(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        test = _test(nodeid)
        self.report(self._worst.pop(test, Verdict(test, "passed")))


def _test(nodeid: str) -> str:
    return nodeid.split("::")[-1]


def _why(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr or "").strip().splitlines()
    why = lines[0].removeprefix("AssertionError: ").removeprefix("Failed: ") if lines else ""
    # The kits were imported before pytest could make their asserts say more: then the assert itself is said.
    asserts = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith(">")]
    return asserts[-1] if why in ("", "AssertionError") and asserts else why


@dataclass(frozen=True)
class _Subject:
    """Gives the generated test file what it tests."""

    offer: Offer[Any]
    settings: Settings
    processes: Processes

    @pytest.fixture
    def conform_make(self, tmp_path: Path, context: KitContext) -> Callable[[], Any]:
        settings = self.settings(tmp_path) if callable(self.settings) else self.settings
        return lambda: self.offer.make(settings, context)

    @pytest.fixture
    def conform_world(self) -> Processes:
        return self.processes.renewed()
