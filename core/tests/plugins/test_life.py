"""Life hooks go to one plugin at a time, and what one does to itself does not reach the others."""

from __future__ import annotations

import logging
import sys

import pytest

from stepwell.abc.sink import TierCleared
from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.plugins import Plan, Registry
from stepwell.types import Tier

from .conftest import Site

LIFE = """
from stepwell import hookimpl
seen = []

@hookimpl
def stepwell_assembled(plan):
    seen.append(plan)
    {assembled}

@hookimpl
def stepwell_events(batch):
    seen.append(list(batch))
    {events}

@hookimpl
def stepwell_stopping(why):
    seen.append(why)
    {stopping}
"""


def install(site: Site, name: str, assembled: str = "", events: str = "", stopping: str = "") -> None:
    words = {"assembled": assembled, "events": events, "stopping": stopping}
    site.install(name, LIFE.format(**{key: word or "pass" for key, word in words.items()}))


def seen(name: str) -> list[object]:
    found: list[object] = sys.modules[f"stepwell_{name}"].seen
    return found


def plan(registry: Registry) -> Plan:
    return Plan(registry, Config.load(None, {}))


def test_everybody_is_told(site: Site) -> None:
    install(site, "a")
    install(site, "b")
    registry = site.load()
    told = plan(registry)
    registry.assembled(told)
    registry.events([TierCleared(Tier.HOST)])
    registry.stopping("signal")
    assert seen("a") == seen("b") == [told, [TierCleared(Tier.HOST)], "signal"]


def test_a_plugin_may_take_less_than_the_hook_gives(site: Site) -> None:
    site.install("a", "from stepwell import hookimpl\nseen = []\n@hookimpl\ndef stepwell_events(): seen.append(1)")
    registry = site.load()
    registry.events([])
    assert seen("a") == [1]


def test_raising_at_assembly_vetoes_the_start(site: Site) -> None:
    install(site, "a", assembled="raise RuntimeError('only on Tuesdays')")
    registry = site.load()
    with pytest.raises(ConfigError) as caught:
        registry.assembled(plan(registry))
    text = "plugin a (stepwell-a 1.0) refuses the start: RuntimeError: only on Tuesdays"
    assert str(caught.value) == text
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_b147_one_that_raises_does_not_keep_the_others_from_cleaning_up(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "a", stopping="raise SystemExit(9)")
    install(site, "b", stopping="raise ValueError('lost')")
    install(site, "c")
    registry = site.load()
    with caplog.at_level(logging.WARNING):
        registry.stopping("end")
    assert seen("c") == ["end"]
    assert registry.failures == {"a": 1, "b": 1}
    assert "plugin b (stepwell-b 1.0): stepwell_stopping: ValueError: lost" in caplog.text


@pytest.mark.parametrize("style", ["wrapper", "hookwrapper"])
def test_b147_wrappers_are_not_taken(site: Site, style: str) -> None:
    source = f"from stepwell import hookimpl\n@hookimpl({style}=True)\ndef stepwell_stopping(why):\n    yield"
    site.install("a", source)
    install(site, "b")
    registry = site.load()
    record = registry.record("a")
    assert record is not None and record.state == "invalid" and "wrapper" in record.reason
    registry.stopping("end")
    assert seen("b") == ["end"]


def test_a_failing_events_hook_is_counted_and_logged_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "a", events="raise ValueError('full')")
    registry = site.load()
    for _ in range(5):
        registry.events([])
    assert registry.failures == {"a": 5}
    assert caplog.text.count("ValueError: full; further failures") == 1


def test_nobody_is_asked_who_does_not_listen(site: Site, no_hooks: object) -> None:
    site.install("a", "from stepwell import hookimpl\n@hookimpl\ndef stepwell_stopping(why): ...")
    registry = site.load()
    with no_hooks(registry.manager):  # type: ignore[operator]
        registry.events([TierCleared(Tier.DEVICE)])


def test_checks_and_commands_that_fail_are_records(site: Site) -> None:
    site.install("a", "from stepwell import hookimpl\n@hookimpl\ndef stepwell_checks(): 1 / 0")
    site.install("b", "from stepwell import hookimpl\n@hookimpl\ndef stepwell_checks(): return ['what']")
    good = "from stepwell import Check, Finding, hookimpl\n@hookimpl\ndef stepwell_checks():\n"
    site.install("c", good + "    return [Check('disk', lambda: Finding('ok', 'fine'))]")
    checks, failed = site.load().checks()
    assert [(record.name, check.name) for record, check in checks] == [("c", "disk")]
    assert [(record.name, record.state) for record in failed] == [("a", "broken"), ("b", "invalid")]
    assert "stepwell_checks: ZeroDivisionError" in failed[0].reason
