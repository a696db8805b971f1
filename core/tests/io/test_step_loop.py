"""The serving loop does not notice a storage whose process is killed, crashes, hangs or holds its interpreter."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from stepwell_testkit.serving import Report, under_fault

from .conftest import Wild

SETTINGS = {"tiers.own_process": "auto", "tiers.timeout_s": 0.5}


def kill(wild: Wild) -> None:
    os.kill(wild.pid(), signal.SIGKILL)


def fault(text: str) -> Callable[[Wild], None]:
    return lambda wild: wild.fault(text)


def serve(wild: Wild, break_it: Callable[[Wild], None], use: str = "wild") -> Report:
    return under_fault(
        wild.table(use),
        lambda: break_it(wild),
        wild.fault,
        settings=SETTINGS,
        registry=wild.registry,
        before_s=1.0,
        during_s=2.5,
    )


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(kill, id="killed"),
        pytest.param(fault("segv read write"), id="segfault"),
        pytest.param(fault("gil read write"), id="holds the interpreter"),
        pytest.param(fault("hang"), id="hangs"),
        pytest.param(fault("stop contains"), id="stopped"),
        pytest.param(fault("raise"), id="raises"),
    ],
)
def test_the_loop_turns_whatever_befalls_the_process_of_a_storage(wild: Wild, break_it: Callable[[Wild], None]) -> None:
    report = serve(wild, break_it)
    print(report)
    report.check()


def test_the_proof_can_fail(wild: Wild) -> None:
    """In the engine's own process a client that holds the interpreter holds up everything, and that is seen."""
    report = serve(wild, fault("gil read write"), "tame")
    assert report.answers_equal and report.during.longest > 1.0
    with pytest.raises(AssertionError, match="the loop s"):
        report.check()
