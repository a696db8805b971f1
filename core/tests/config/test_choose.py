"""Choosing offers by name, what an unread section means, and what has to hold between core's sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell.offers import Offer
from stepwell.plugins import Registry, load
from stepwell.resolve import resolve
from stepwell.settings import MOST, CacheSettings, EngineSettings

from .conftest import Make

SCRATCH = """
from dataclasses import dataclass
from pathlib import Path
from stepwell import Offer, hookimpl

@dataclass(frozen=True)
class Config:
    root: Path
    tries: int = 3

@hookimpl
def stepwell_storages():
    return [Offer("scratch", print, Config)]
"""

RUNNER = """
from stepwell import NoConfig, Offer, hookimpl

@hookimpl
def stepwell_runners():
    return [Offer("{name}", print, NoConfig)]
"""

Install = Callable[..., Registry]


@pytest.fixture
def install(fake_dist: Callable[..., Path]) -> Install:
    """`install({name: source}, **load_arguments)`: a registry of core and these plugins."""
    from importlib.metadata import distributions

    def build(plugins: dict[str, str], **arguments: object) -> Registry:
        paths = [
            str(
                fake_dist(f"stepwell-{name}", {f"stepwell_{name}": source}, {"stepwell.v1": {name: f"stepwell_{name}"}})
            )
            for name, source in plugins.items()
        ]
        return load(distributions=distributions(path=paths), **arguments)  # type: ignore[arg-type]

    return build


@pytest.fixture
def core(install: Install) -> Registry:
    return install({})


def test_the_errors_of_the_conventions_word_for_word(make: Make, install: Install) -> None:
    registry = install({"scratch": SCRATCH})

    def wrong(**arguments: object) -> str:
        with pytest.raises(ConfigError) as caught:
            make(**arguments).choose("storage", "storage", registry, "scratch")
        return str(caught.value)

    rot = "storage.rot (--set storage.rot): no such setting; did you mean root?"
    assert wrong(sets=["storage.rot=/x"]) == rot
    assert wrong(sets=["storage.tries=lots", "storage.root=/x"]) == (
        "storage.tries (--set storage.tries): 'lots' is not of type int"
    )
    assert wrong(env={"STEPWELL_STORAGE__USE": "mooncake"}) == (
        "storage.use = 'mooncake' ($STEPWELL_STORAGE__USE): nothing installed offers it; "
        "have memory, mirror, scratch, tiered"
    )
    assert wrong() == "storage.root is required and not set"
    assert wrong(toml="[storage]\nuse = 5") == "storage.use (site.toml:2): 5 is not of type str"


def test_what_is_chosen_comes_with_settings_and_origin(make: Make, install: Install) -> None:
    config = make("[storage]\nuse = 'scratch'\nroot = '/x'")
    chosen = config.choose("storage", "storage", install({"scratch": SCRATCH}))
    assert chosen is not None
    assert isinstance(chosen.offer, Offer)
    assert (chosen.offer.name, str(chosen.origin), chosen.settings.root) == ("scratch", "site.toml:2", Path("/x"))
    shown = {line.key: (line.value, line.origin) for line in config.shown()}
    assert shown["use"] == ("'scratch'", "site.toml:2")
    assert shown["tries"] == ("3", "default")


def test_a_role_without_default_is_chosen_by_nobody_or_by_name(make: Make, core: Registry) -> None:
    assert make().choose("storage", "storage", core) is None
    with pytest.raises(ConfigError, match=r"storage.use is required and not set; have memory"):
        make("[storage]\ngib = 2.0").choose("storage", "storage", core)


def test_b142_a_plugin_that_failed_and_is_named_stops_the_start(make: Make, install: Install) -> None:
    registry = install({"fast": "raise OSError('driver too old')"})
    with pytest.raises(ConfigError) as caught:
        resolve(make("[runner]\nuse = 'fast'"), registry)
    assert str(caught.value) == (
        "runner.use = 'fast' (site.toml:2): plugin fast (stepwell-fast 1.0) is broken: "
        "import stepwell_fast: OSError: driver too old"
    )


def test_b142_auto_falls_back_and_says_so(make: Make, install: Install) -> None:
    registry = install({"fast": "raise OSError('driver too old')"})
    config = make("[runner]\nuse = 'auto'")
    assert resolve(config, registry).chosen["runner"].offer.name == "sim"
    assert config.notes == ["runner.use = 'sim' was chosen automatically"]
    assert registry.warnings() == [
        "plugin fast (stepwell-fast 1.0) is broken: import stepwell_fast: OSError: driver too old"
    ]
    failed = registry.record("fast")
    assert failed is not None and "driver too old" in failed.traceback.splitlines()[-1]


def test_the_only_runner_beside_sim_is_the_default(make: Make, install: Install) -> None:
    registry = install({"real": RUNNER.format(name="real")})
    config = make()
    assert resolve(config, registry).chosen["runner"].offer.name == "real"
    assert ("runner", "use", "'real'", "chosen automatically") in [
        (line.section, line.key, line.value, line.origin) for line in config.shown()
    ]


def test_no_runner_or_several_have_to_be_chosen_from(make: Make, install: Install, core: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(make(), core)
    assert str(caught.value) == "runner.use is required and not set; have sim"
    several = install({"one": RUNNER.format(name="one"), "two": RUNNER.format(name="two"), "bad": "import nothing_x"})
    for toml in ("", "[runner]\nuse = 'auto'"):
        with pytest.raises(ConfigError, match=r"not set; have one, sim, two; plugin bad .* is broken: import"):
            resolve(make(toml), several)


def test_b148_a_missing_offer_is_blamed_on_the_plugin_that_failed(make: Make, install: Install) -> None:
    registry = install({"tools": "import nothing_at_all"})
    with pytest.raises(ConfigError) as caught:
        make("[evict]\nuse = 'smart'").choose("evict", "evict", registry, "lru")
    assert str(caught.value) == (
        "evict.use = 'smart' (site.toml:2): nothing installed offers it; "
        "plugin tools (stepwell-tools 1.0) is broken: "
        "import stepwell_tools: ModuleNotFoundError: No module named 'nothing_at_all'; have lru"
    )


# --- sections that nobody reads ---


def test_an_unknown_section_is_an_error_with_a_suggestion(make: Make, core: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        make("[cache]\n\n[storge]\nuse = 'memory'").finish(core)
    assert str(caught.value) == "storge (site.toml:3): no such section; did you mean storage?"
    with pytest.raises(ConfigError, match=r"storge \(--set storge.use\): no such section"):
        make(sets=["storge.use=x"]).finish(core)


def test_a_known_section_without_use_here_is_a_note(make: Make, core: Registry) -> None:
    config = make("[route]\nuse = 'x'")
    config.finish(core)
    assert config.notes == ["[route] (site.toml:1) is ignored: there is one engine here to choose from (ranks.dp = 1)"]


@pytest.mark.parametrize("kind", ["attention", "dispatch", "balance"])
def test_a_kind_that_the_runner_chooses_is_no_section(make: Make, core: Registry, kind: str) -> None:
    sentence = f"no section of its own; write [runner.{kind}]"
    with pytest.raises(ConfigError) as caught:
        make(f"[cache]\n\n[{kind}]\nuse = 'x'").finish(core)
    assert str(caught.value) == f"{kind} (site.toml:3): {sentence}"
    with pytest.raises(ConfigError) as caught:
        make(sets=[f"{kind}.use=x"]).finish(core)
    assert str(caught.value) == f"{kind} (--set {kind}.use): {sentence}"


def test_b141_sections_of_disabled_plugins_are_kept_and_ignored_with_a_note(make: Make, install: Install) -> None:
    toml = "[extra]\nwhatever = 1\n[gone]\nx = 1"
    registry = install({"extra": "raise SystemExit"}, disable=["extra", "gone"])
    config = make(toml)
    config.finish(registry)
    assert config.notes == [
        "[extra] (site.toml:1) is ignored: plugin extra (stepwell-extra 1.0) is disabled: by name",
        "[gone] (site.toml:3) is ignored: plugin gone is missing: disabled, but not installed",
    ]
    assert [(line.section, line.key) for line in config.shown()] == [("extra", "whatever"), ("gone", "x")]


def test_b153_misspelt_wrong_type_and_misplaced_keys_stop_the_start(make: Make, core: Registry) -> None:
    for toml, text in {
        "[cache]\npage_sise = 16": "cache.page_sise (site.toml:2): no such setting; did you mean page_size?",
        "[cache]\npage_size = '16'": "cache.page_size (site.toml:2): '16' is not of type int",
        "[engine]\npage_size = 16": "engine.page_size (site.toml:2): no such setting; did you mean cache.page_size?",
        "[evict]\nio_threads = 1": "evict.io_threads (site.toml:2): no such setting; did you mean tiers.io_threads?",
    }.items():
        with pytest.raises(ConfigError) as caught:
            resolve(make(toml), core)
        assert str(caught.value) == text


def test_b153_the_summary_says_where_each_value_came_from(make: Make, core: Registry) -> None:
    config = make(
        "[cache]\npage_size = 32\n[runner]\nuse = 'sim'", {"STEPWELL_ENGINE__CHUNK": "64"}, ["cache.host_gib=1"]
    )
    resolve(config, core)
    origins = {(line.section, line.key): line.origin for line in config.shown()}
    assert origins["cache", "page_size"] == "site.toml:2"
    assert origins["engine", "chunk"] == "$STEPWELL_ENGINE__CHUNK"
    assert origins["cache", "host_gib"] == "--set cache.host_gib"
    assert origins["cache", "device_pages"] == origins["evict", "use"] == "default"


# --- ranges and prerequisites ---


def test_b154_values_are_used_rounded_up_with_a_note_or_refused(make: Make, core: Registry) -> None:
    def effective(value: str) -> tuple[int | None, list[str], str]:
        config = make("[runner]\nuse = 'sim'", sets=["cache.page_size=256", f"engine.chunk={value}"])
        engine = resolve(config, core).engine
        shown = next(line.value for line in config.shown() if line.key == "chunk")
        return engine.chunk, config.notes, shown

    assert effective("8192") == (8192, [], "8192")
    assert effective("100") == (
        256,
        ["engine.chunk: 100 is not a multiple of cache.page_size = 256; 256 is used"],
        "256",
    )
    for value in ("0", "-1"):
        with pytest.raises(ConfigError) as caught:
            effective(value)
        assert str(caught.value) == f"engine.chunk (--set engine.chunk): {value} is less than 1"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("cache", "page_size", "0"),
        ("cache", "device_pages", "0"),
        ("cache", "device_gib", "0"),
        ("cache", "host_gib", "-1"),
        ("cache", "save_pages_per_step", "0"),
        ("engine", "max_running", "0"),
        ("engine", "max_waiting", "-1"),
        ("engine", "drain_s", "-1"),
        ("engine", "look_at", "0"),
        ("engine", "prefill_every", "0"),
        ("engine", "decode_every", "-2"),
        ("engine", "max_retractions", "-1"),
        ("tiers", "io_threads", "0"),
        ("tiers", "timeout_s", "0"),
        ("tiers", "retries", "-1"),
        ("tiers", "breaker_s", "0"),
    ],
)
def test_b154_every_number_has_its_range(make: Make, core: Registry, section: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}.{key} \(--set {section}.{key}\): {value}\S* is (less|not)"):
        resolve(make("[runner]\nuse = 'sim'", sets=[f"{section}.{key}={value}"]), core)


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        (
            "[engine]\nprefill_every = 2\ndecode_every = 3",
            "engine.prefill_every (site.toml:2): 2 with decode_every = 3 leaves steps that compute nothing; "
            "set one of them to 1",
        ),
        (
            "[engine]\ncount_by = ['tenant', 'model']",
            "engine.count_by (site.toml:2): 'model' is nothing to count by; have routing_key, tenant",
        ),
    ],
)
def test_settings_of_the_engine_that_make_no_sense_are_refused(make: Make, toml: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(toml).bind("engine", EngineSettings)
    assert str(caught.value) == text


def test_b156_two_ways_to_say_one_thing_exclude_each_other(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"cache.host_pages \(site.toml:2\): host_gib is set too; set one of them"):
        make("[cache]\nhost_pages = 3\nhost_gib = 1.0").bind("cache", CacheSettings)


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        (
            "[storage]\nuse = 'memory'",
            "[storage] (site.toml:1) has no effect without a host tier; set cache.host_gib or cache.host_pages, "
            "or leave [storage] out",
        ),
        ("[write]\nuse = 'write_back'", "[write] (site.toml:1) has no effect without a host tier; set cache.host_gib"),
        (
            "[prefetch]\nuse = 'timeout'",
            "[prefetch] (site.toml:1) has no effect without storage; set storage.use, or leave [prefetch] out",
        ),
        ("[tiers]\nretries = 1", "[tiers] (site.toml:1) has no effect without storage; set storage.use"),
        (
            "[cache]\nhost_gib = 1.0\n[storage]\nuse = 'memory'\nsegment_gib = 3",
            "storage.segment_gib (site.toml:5): no such setting; have gib",
        ),
        ("[cache]\nhost_gib = 0.0\n[storage]\nuse = 'memory'", "[storage] (site.toml:3) has no effect without a host"),
    ],
)
def test_b156_an_option_without_its_prerequisite_names_both(make: Make, core: Registry, toml: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(make(toml), core)
    assert str(caught.value).startswith(text)


def test_b156_with_its_prerequisite_it_counts(make: Make, core: Registry) -> None:
    toml = "[runner]\nuse = 'sim'\n[cache.groups.full]\nhost_pages = 9\n[storage]\nuse = 'memory'\n[tiers]\nretries = 0"
    config = make(toml, sets=["prefetch.use=timeout", "write.use=write_back"])
    resolved = resolve(config, core)
    config.finish(core)
    assert {section: choice.offer.name for section, choice in resolved.chosen.items()} == {
        "evict": "lru",
        "write": "write_back",
        "retain": "tail",
        "schedule": "fcfs",
        "prefetch": "timeout",
        "storage": "memory",
        "runner": "sim",
    }
    assert resolved.tiers.retries == 0
    assert config.notes == []


def test_groups_take_only_what_core_knows(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"cache.groups \(site.toml:2\): swa.pages is no such setting; have device"):
        make("[cache.groups.swa]\npages = 3").bind("cache", CacheSettings)
    with pytest.raises(ConfigError, match=r"cache.groups \(site.toml:2\): swa.device_pages = 0 is less than 1"):
        make("[cache.groups.swa]\ndevice_pages = 0").bind("cache", CacheSettings)


@dataclass(frozen=True)
class Rounds:
    threshold: int = 100

    def in_pages(self, page_size: int) -> tuple[Rounds, list[str]]:
        return Rounds(-(-self.threshold // page_size) * page_size), [f"threshold: in pages of {page_size}"]


def test_settings_of_an_offer_may_round_to_pages_too(make: Make, core: Registry) -> None:
    config = make("[runner]\nuse = 'sim'")
    real = config.choose

    def choose(section: str, kind: str, registry: Registry, default: str | None = None) -> object:
        chosen = real(section, kind, registry, default)  # type: ignore[arg-type]
        return type(chosen)(section, chosen.offer, Rounds(), chosen.origin) if section == "evict" and chosen else chosen

    config.choose = choose  # type: ignore[method-assign, assignment]
    assert resolve(config, core).chosen["evict"].settings == Rounds(112)
    assert "threshold: in pages of 16" in config.notes


def test_engine_settings_in_pages_leave_what_fits() -> None:
    settings = EngineSettings(chunk=32)
    assert settings.in_pages(16) == (settings, [])


def test_what_is_as_large_as_can_be_is_rounded_down() -> None:
    settings, notes = EngineSettings(chunk=MOST - 1).in_pages(100)
    assert settings.chunk == (MOST - 1) // 100 * 100 and f"{settings.chunk} is used" in notes[1]


def test_folders_of_the_user(make: Make) -> None:
    assert make(env={"XDG_CACHE_HOME": "/c"}).cache_dir == Path("/c/stepwell")
    assert make(env={"HOME": "/h"}).cache_dir == Path("/h/.cache/stepwell")
    with pytest.raises(ConfigError, match="HOME"):
        make().cache_dir  # noqa: B018 - reading it is the test
    assert isinstance(make(), Config)


WEB = """
from dataclasses import dataclass
from stepwell import hookimpl

@dataclass(frozen=True)
class Web:
    port: int = 80
    key: str = ""

@hookimpl
def stepwell_sections():
    return {"web": Web}
"""


def test_a_section_of_a_plugin_is_judged_by_every_command(make: Make, install: Install) -> None:
    registry = install({"web": WEB})
    config = make("[web]\nport = 1")
    config.finish(registry)
    assert config.notes == []
    assert {line.key: line.value for line in config.shown()} == {"port": "1", "key": "''"}
    for toml, text in {
        "[web]\nprot = 1": "web.prot (site.toml:2): no such setting; did you mean port?",
        "[web]\nport = 'x'": "web.port (site.toml:2): 'x' is not of type int",
        "[wed]\nport = 1": "wed (site.toml:1): no such section; did you mean web?",
    }.items():
        with pytest.raises(ConfigError) as caught:
            make(toml).finish(registry)
        assert str(caught.value) == text


def test_a_secret_of_a_section_that_another_process_reads_is_not_missed_here(make: Make, install: Install) -> None:
    toml = '[web]\nkey = { env = "WEB_KEY" }'
    make(toml).finish(install({"web": WEB}))
    with pytest.raises(ConfigError, match=r"web.key \(site.toml:2\): the variable \$WEB_KEY is not set"):
        make(toml).bind("web", CacheSettings)


def test_b156_what_only_a_later_storage_uses_is_noted(make: Make, core: Registry) -> None:
    config = make("[cache]\nhost_gib = 1.0\n[prefetch]\nuse = 'timeout'\n[runner]\nuse = 'sim'")
    assert resolve(config, core).chosen["prefetch"].offer.name == "timeout"
    assert config.notes == ["[prefetch] (site.toml:3) has no effect until a storage is attached"]
