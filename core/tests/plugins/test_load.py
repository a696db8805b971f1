"""Whatever a plugin does at import or registration, the others load, and it becomes one record."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from stepwell import discover
from stepwell.errors import ConfigError, PluginError
from stepwell.plugins import KINDS, load

from .conftest import Site, storage

HOOK = "from stepwell import Offer, hookimpl\n@hookimpl\n"
BAD = {
    "raises": ("raise ImportError('no module named nothing')", "broken", "import stepwell_raises: ImportError: no mod"),
    "exits": ("import sys; sys.exit(3)", "broken", "import stepwell_exits: SystemExit: 3"),
    "syntax": ("def (", "broken", "import stepwell_syntax: SyntaxError"),
    "argument": (
        HOOK + "def stepwell_storages(config): return ()",
        "invalid",
        "an argument config; the hook takes none",
    ),
    "default": (HOOK + "def stepwell_events(batch=()): ...", "invalid", "gives its argument batch a default"),
    "misspelt": (
        HOOK + "def stepwell_storage(): return ()",
        "invalid",
        "no hook of stepwell; did you mean stepwell_sto",
    ),
    "bare": ("def stepwell_storages(): return ()", "invalid", "stepwell_storages lacks the @hookimpl decorator"),
    "empty": ("x = 1", "invalid", "stepwell_empty implements no hook"),
    "inhook": (HOOK + "def stepwell_storages(): raise OSError('disk')", "broken", "stepwell_storages: OSError: disk"),
    "exitinhook": (HOOK + "def stepwell_storages(): raise SystemExit(1)", "broken", "stepwell_storages: SystemExit: 1"),
    "noiter": (HOOK + "def stepwell_storages(): return 7", "broken", "'int' object is not iterable"),
    "nooffer": (HOOK + "def stepwell_storages(): return ['x']", "invalid", "gave str instead of an Offer"),
    "name": (
        HOOK + "def stepwell_storages(): return [Offer('A b', print)]",
        "invalid",
        "'A b' is no name for an offer",
    ),
    "nomake": (HOOK + "def stepwell_storages(): return [Offer('x', 5)]", "invalid", "make of x cannot be called"),
    "nodata": (HOOK + "def stepwell_storages(): return [Offer('x', print, int)]", "invalid", "is not a dataclass"),
    "thawed": (
        "from dataclasses import dataclass\n@dataclass\nclass C: ...\n"
        + HOOK
        + "def stepwell_storages(): return [Offer('x', print, C)]",
        "invalid",
        "config of x is not frozen",
    ),
    "twice": (HOOK + "def stepwell_storages(): return [Offer('x', print)] * 2", "invalid", "offers x twice"),
    "wrapped": (
        "from stepwell import hookimpl\n@hookimpl(wrapper=True)\ndef stepwell_storages():\n    return (yield)",
        "invalid",
        "is a wrapper",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plugin_is_one_record_and_leaves_nothing_behind(site: Site, name: str) -> None:
    source, state, reason = BAD[name]
    site.install("aaa", storage("first"))
    site.install(name, source)
    site.install("zzz", storage("last"))
    registry = site.load()
    record = registry.record(name)
    assert record is not None
    assert (record.distribution, record.version, record.state) == (f"stepwell-{name}", "1.0", state)
    assert reason in record.reason
    assert ("Traceback" in record.traceback) == (state == "broken")
    assert [r.name for r in registry.records if r.name == name] == [name]
    assert {"first", "last"} <= set(registry.offers("storage"))
    assert sorted(str(registry.manager.get_name(p)) for p in registry.manager.get_plugins()) == [
        "aaa",
        "builtin",
        "zzz",
    ]
    for hook in KINDS.values():
        assert name not in [impl.plugin_name for impl in getattr(registry.manager.hook, hook).get_hookimpls()]


def test_b140_good_plugins_load_among_bad_ones_in_any_order(site: Site) -> None:
    site.install("good1", storage("one"))
    for name in ("raises", "argument", "inhook", "exits"):
        site.install(name, BAD[name][0])
    site.install("good2", storage("two"))
    registry = site.load()
    assert {"one", "two"} <= set(registry.offers("storage"))
    bad = [record for record in registry.records if record.state not in ("ok", "unusable")]
    assert [record.name for record in bad] == ["argument", "exits", "inhook", "raises"]
    assert all(record.reason and record.version == "1.0" for record in bad)
    with pytest.raises(PluginError, match=r"plugin argument \(stepwell-argument 1.0\) is invalid"):
        site.load(strict=True)


def test_the_keyboard_is_not_contained(site: Site) -> None:
    site.install("stop", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.load()


def test_a_disabled_plugin_is_not_imported(site: Site) -> None:
    site.install("trap", "raise SystemExit('imported')")
    for name in ("trap", "stepwell-trap"):
        record = site.load(disable=[name]).record("trap")
        assert record is not None and (record.state, record.reason) == ("disabled", "by name")
    record = site.load(only=["other"]).record("trap")
    assert record is not None and (record.state, record.reason) == ("disabled", "not among the plugins asked for")
    assert "stepwell_trap" not in sys.modules


def test_a_name_that_is_not_installed_is_said(site: Site) -> None:
    registry = site.load(disable=["gone"], only=["absent"])
    assert [(r.name, r.state, r.reason) for r in registry.records if r.name != "builtin"] == [
        ("absent", "missing", "asked for, but not installed"),
        ("gone", "missing", "disabled, but not installed"),
    ]


def test_core_cannot_be_switched_off(site: Site) -> None:
    assert "memory" in site.load(disable=["builtin", "stepwell"], only=[]).offers("storage")


def test_another_major_is_listed_and_not_imported(site: Site) -> None:
    site.install("old", "raise SystemExit('imported')", group="stepwell.v2", version="0.3")
    record = site.load().record("old")
    assert record is not None
    assert (record.state, record.reason) == (
        "incompatible",
        "written for stepwell.v2; this stepwell speaks stepwell.v1",
    )
    assert "stepwell_old" not in sys.modules


def test_a_plugin_that_speaks_two_majors_is_taken_by_the_one_we_speak(site: Site, fake_dist: object) -> None:
    groups = {"stepwell.v2": {"both": "none"}, "stepwell.v1": {"both": "both_one"}}
    path = fake_dist("both", {"both_one": storage("both")}, groups)  # type: ignore[operator]
    site.paths.append(str(path))
    assert [(r.name, r.state) for r in site.load().records] == [("both", "ok"), ("builtin", "ok")]


def test_other_groups_are_none_of_ours(site: Site) -> None:
    site.install("x", "raise SystemExit", group="stepwell.v1.more")
    site.install("y", "raise SystemExit", group="other")
    assert [record.name for record in site.load().records] == ["builtin"]


@pytest.mark.parametrize(
    ("requires", "state", "reason"),
    [
        ("stepwell>=0.1,<0.2", "ok", ""),
        ("stepwell>=7", "incompatible", "requires stepwell>=7; this is stepwell "),
        ("no-such-library>=2", "broken", "requires no-such-library>=2, which is not installed"),
        ("click>=999", "broken", "requires click>=999, "),
        ("no-such-library; extra == 'test'", "ok", ""),
        ("no-such-library; python_version < '3'", "ok", ""),
        ("no-such-library; python_version >= '3'", "broken", "which is not installed"),
    ],
)
def test_requirements_are_checked_at_load(site: Site, requires: str, state: str, reason: str) -> None:
    site.install("x", storage("x"), requires=[requires])
    record = site.load().record("x")
    assert record is not None and record.state == state and reason in record.reason


def test_a_requirement_may_be_met_by_another_distribution_given(site: Site) -> None:
    site.install("x", storage("x"), requires=["stepwell-y==2.0"])
    site.install("y", storage("y"), version="2.0")
    assert set(site.load().offers("storage")) >= {"x", "y"}


def test_two_distributions_with_one_plugin_name_are_both_refused(site: Site) -> None:
    site.install("same", storage("a"), distribution="dist-a")
    site.install("same", storage("b"), distribution="dist-b")
    records = [record for record in site.load().records if record.name == "same"]
    assert [(record.distribution, record.state) for record in records] == [
        ("dist-a", "conflict"),
        ("dist-b", "conflict"),
    ]
    assert all("both same (dist-a 1.0) and same (dist-b 1.0)" in record.reason for record in records)
    assert "a" not in site.load().offers("storage")
    assert "a" in site.load(disable=["dist-b"]).offers("storage")


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "c", "b"), ("c", "b", "a")])
def test_an_offer_that_two_plugins_make_is_nobodys(site: Site, names: tuple[str, ...]) -> None:
    for name in names:
        site.install(name, storage("shared" if name != "b" else "own"))
    registry = site.load()
    states = {record.name: record.state for record in registry.records}
    assert states == {"a": "conflict", "b": "ok", "builtin": "ok", "c": "conflict"}
    text = "plugin a (stepwell-a 1.0) conflicts: storage:shared is offered by both a (stepwell-a 1.0) and c"
    with pytest.raises(ConfigError) as caught:
        registry.offer("storage", "shared")
    assert text in str(caught.value)
    assert len(registry.manager.get_plugins()) == 2


def test_cores_names_win(site: Site) -> None:
    site.install("memory", storage("memory"))
    site.install("builtin", storage("mine"), distribution="somebodys")
    registry = site.load()
    assert registry.owner(registry.offer("storage", "memory")).distribution == "stepwell"
    assert {(r.name, r.distribution): r.state for r in registry.records} == {
        ("builtin", "somebodys"): "conflict",
        ("builtin", "stepwell"): "ok",
        ("memory", "stepwell-memory"): "conflict",
    }
    assert "both builtin (stepwell " in next(r.reason for r in registry.records if r.name == "memory")


def test_one_module_under_two_names_is_a_conflict_and_the_first_stays(site: Site, fake_dist: object) -> None:
    groups = {"stepwell.v1": {"one": "shared_module", "two": "shared_module"}}
    site.paths.append(str(fake_dist("pair", {"shared_module": storage("x")}, groups)))  # type: ignore[operator]
    registry = site.load()
    states = {record.name: (record.state, record.reason) for record in registry.records}
    assert states["one"][0] == "ok"
    assert states["two"] == ("conflict", "shared_module is plugin one already")
    assert "x" in registry.offers("storage")


def test_what_cannot_run_here_is_unusable_with_its_reason(site: Site) -> None:
    source = """
from stepwell import Offer, hookimpl
@hookimpl
def stepwell_storages():
    return [Offer("needs", print, missing=lambda: "no such device"), *MORE]
"""
    site.install("one", source.replace("*MORE", ""))
    site.install("two", source.replace("needs", "also").replace("*MORE", 'Offer("works", print)'))
    site.install("three", source.replace("needs", "raises").replace('"no such device"', "1 / 0").replace("*MORE", ""))
    registry = site.load()
    assert {r.name: r.state for r in registry.records if r.name != "builtin"} == {
        "one": "unusable",
        "three": "unusable",
        "two": "ok",
    }
    assert registry.offer("storage", "works").name == "works"
    with pytest.raises(ConfigError, match="storage 'also': no such device"):
        registry.offer("storage", "also")
    with pytest.raises(ConfigError, match="storage 'raises': ZeroDivisionError"):
        registry.offer("storage", "raises")


def test_b148_a_name_nobody_offers_is_blamed_on_the_plugin_that_failed(site: Site) -> None:
    site.install("nixl", "import nixl_library")
    registry = site.load()
    with pytest.raises(ConfigError) as caught:
        registry.offer("storage", "nixl")
    assert str(caught.value) == (
        "storage 'nixl': plugin nixl (stepwell-nixl 1.0) is broken: "
        "import stepwell_nixl: ModuleNotFoundError: No module named 'nixl_library'"
    )
    with pytest.raises(ConfigError) as caught:
        registry.offer("storage", "fast")
    blame = "plugin nixl (stepwell-nixl 1.0) is broken: import stepwell_nixl: "
    assert f"nothing installed offers it; {blame}" in str(caught.value)
    assert str(caught.value).endswith("; have memory, mirror, tiered")


def test_b144_equal_plugins_give_equal_digests_in_every_process(site: Site) -> None:
    site.install("x", storage("x"))
    here = site.load().digest()
    script = (
        "import sys, importlib.metadata as m\nfrom stepwell.plugins import load\n"
        "print(load(distributions=list(m.distributions(path=sys.argv[1:]))).digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {site.paths!r}\n{script}", *site.paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == here
    site.install("y", "raise ImportError")
    assert site.load().digest() == here, "what is not loaded cannot differ"
    site.install("z", storage("z"))
    assert site.load().digest() != here
    assert site.load(disable=["z"]).digest() == here


def test_b146_an_error_of_discovery_does_not_outlast_the_call(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("x", storage("x"))
    real = importlib.metadata.distributions

    def fails(**_: object) -> object:
        raise OSError("stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(discover.importlib.metadata, "distributions", fails)
        with pytest.raises(PluginError, match="cannot list what is installed: OSError: stale file handle"):
            load()
    assert importlib.metadata.distributions is real
    assert "x" in load(only=["x"]).offers("storage")


def test_unreadable_metadata_is_a_record(site: Site) -> None:
    class Torn(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            raise OSError("input/output error")

        def locate_file(self, path: object) -> object:  # type: ignore[override]
            return "/somewhere"

    site.install("x", storage("x"))
    registry = load(distributions=[Torn(), *site.distributions])
    assert "x" in registry.offers("storage")
    torn = registry.record("?")
    assert torn is not None and torn.state == "broken"
    assert "/somewhere cannot be read: input/output error" in torn.reason


def test_a_shadowed_distribution_does_not_count(site: Site) -> None:
    site.install("x", storage("new"), version="2.0")
    site.install("x", storage("old"), version="1.0")
    assert [record.version for record in site.load().records if record.name == "x"] == ["2.0"]


def test_load_leaves_no_state(site: Site) -> None:
    site.install("x", storage("x"))
    first, second = site.load(), site.load()
    assert first.manager is not second.manager
    assert first.records == second.records


SECTIONS = """
from dataclasses import dataclass
from stepwell import hookimpl

@dataclass(frozen=True)
class Table:
    port: int = 80

@hookimpl
def stepwell_sections():
    return {names!r}
"""


def test_a_section_that_a_plugin_binds_itself(site: Site) -> None:
    site.install("web", SECTIONS.replace("{names!r}", "{'web': Table}"))
    registry = site.load()
    assert [(name, cls.__name__) for name, cls in registry.sections.items()] == [("web", "Table")]
    assert next(record.offers for record in registry.records if record.name == "web") == ("section:web",)


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        ("{'cache': Table}", "invalid", "stepwell_sections names cache, a section of core's own"),
        ("{'storage': Table}", "invalid", "a section of core's own"),
        ("{'dispatch': Table}", "invalid", "a section of core's own"),
        ("{'web': int}", "invalid", "config of web is not a dataclass"),
        ("{'We b': Table}", "invalid", "'We b' is no name"),
        ("7", "broken", "stepwell_sections: TypeError"),
    ],
)
def test_a_section_has_to_be_a_new_name_and_a_frozen_dataclass(
    site: Site, answer: str, state: str, reason: str
) -> None:
    site.install("web", SECTIONS.replace("{names!r}", answer))
    record = site.load().record("web")
    assert record is not None and record.state == state and reason in record.reason


def test_a_section_that_two_plugins_bind_is_nobodys(site: Site) -> None:
    for name in ("a", "b"):
        site.install(name, SECTIONS.replace("{names!r}", "{'web': Table}"))
    registry = site.load()
    assert registry.sections == {}
    assert {r.name: r.state for r in registry.records} == {"a": "conflict", "b": "conflict", "builtin": "ok"}
