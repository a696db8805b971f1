"""What stops a start, and that it is one sentence within seconds."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError

import pytest

from stepwell import Capability, ConfigError, Finding
from stepwell.offers import provided
from stepwell_mooncake import MooncakeConfig, make, stepwell_checks, stepwell_storages, wheel
from stepwell_mooncake.client import environment
from stepwell_testkit import KitContext
from stepwell_testkit.server import Server, free_port


@contextmanager
def one_sentence(match: str, within_s: float = 5.0) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=match) as caught:
        yield
    assert time.monotonic() - began < within_s
    assert "\n" not in str(caught.value)


def test_a_master_that_is_not_there(context: KitContext) -> None:
    """The client alone blocks 90 s here."""
    with one_sentence(r"storage.master: nobody answers at 127.0.0.1:\d+ \(Connection refused\); start mooncake_master"):
        make(MooncakeConfig(f"127.0.0.1:{free_port()}"), context)


def test_a_master_that_is_frozen(master: Server, context: KitContext) -> None:
    master.freeze()
    try:
        with one_sentence(r"storage.master: Mooncake's client cannot be set up with 127.0.0.1:\d+: internal error"):
            make(MooncakeConfig(f"127.0.0.1:{master.port}"), context)
    finally:
        master.thaw()


def test_another_server_than_a_master(master: Server, context: KitContext) -> None:
    with one_sentence("storage.master: Mooncake's client cannot be set up"):
        make(MooncakeConfig(f"127.0.0.1:{master.ports[1]}"), context)


def test_somebody_who_takes_connections_and_says_nothing(context: KitContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, one_sentence("storage.master: Mooncake's client cannot be"):
        make(MooncakeConfig(f"127.0.0.1:{mute.getsockname()[1]}"), context)


def test_a_metadata_server_that_is_not_there(master: Server, context: KitContext) -> None:
    where = f"http://127.0.0.1:{free_port()}/metadata"
    with one_sentence("storage.metadata: nobody answers at http://127"):
        make(MooncakeConfig(f"127.0.0.1:{master.port}", metadata=where), context)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"master": "somewhere"}, "master: 'somewhere' is no address"),
        ({"master": "http://a:1"}, "master: .* is no address"),
        ({"metrics": "a:0"}, "metrics: 'a:0' is no address"),
        ({"prefix": ""}, "prefix: must be printable"),
        ({"offload": "/x"}, "offload: .* set segment_gib"),
        ({"soft_pin_ttl_s": 1.0}, 'soft_pin_ttl_s: is for pin = "soft"'),
        ({"space_retries": 1000}, "space_pause_s: pauses add up to more than 2 s"),
        ({"replicas": 0}, "replicas"),
        ({"rpc_timeout_s": 0}, "rpc_timeout_s"),
        ({"segment_gib": -1}, "segment_gib"),
        ({"segment_gib": 0.001}, "segment_gib: a segment has at least 16 MiB"),
        ({"segment_gib": 1e300}, "segment_gib"),
        ({"pin": "soft", "soft_pin_ttl_s": float("inf")}, "soft_pin_ttl_s"),
    ],
)
def test_a_setting_that_cannot_be(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MooncakeConfig(**({"master": "a:1"} | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("checksum", [True, False])
def test_only_with_its_checksum_it_says_that_it_checks(checksum: bool) -> None:
    config = MooncakeConfig("a:1", checksum=checksum)
    assert (Capability.CHECKS in provided(stepwell_storages()[0], config)) == checksum
    assert environment(config)["MOONCAKE_STORE_CHECKSUM"] == str(int(checksum))
    assert not MooncakeConfig("a:1").checksum, "core's own is enough, and this one is slow"


# --- the wheels ------------------------------------------------------------------------------------------------------

Installed = Callable[..., None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """As if these wheels were installed, on a machine that lacks these libraries."""

    def install(*wheels: str, lacking: tuple[str, ...] = ()) -> None:
        def version(name: str) -> str:
            if name not in wheels:
                raise PackageNotFoundError(name)
            return "0.3.13"

        monkeypatch.setattr(wheel, "version", version)
        monkeypatch.setattr(wheel, "find_spec", lambda name: object() if wheels else None)
        monkeypatch.setattr(wheel, "_loads", lambda library: library not in lacking)

    return install


def test_which_wheel_is_missing_and_why(installed: Installed) -> None:
    missing = stepwell_storages()[0].missing
    assert missing is not None
    cpu, cuda12, cuda13 = wheel.WHEELS
    installed()
    assert "its client is not installed: pip install 'stepwell-mooncake[cpu]'" in str(missing())
    for one in wheel.WHEELS:
        installed(one)
        assert missing() is None
        installed(one, lacking=("libibverbs.so.1",))
        assert f"{one} is installed, but libibverbs.so.1 is missing: install it" in str(missing())
    for one in (cuda12, cuda13):
        installed(one, lacking=("libcuda.so.1",))
        assert (
            f"libcuda.so.1 is missing: install the NVIDIA driver, or on a machine without a GPU: pip uninstall {one}"
            in (str(missing()))
        )
    installed(cpu, lacking=("libcuda.so.1",))
    assert missing() is None
    installed(cpu, cuda13)
    assert f"{cpu} and {cuda13} overwrite each other" in str(missing())


def test_a_client_that_does_not_load_is_a_sentence(
    master: Server, context: KitContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> object:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr("stepwell_mooncake.client.import_module", load)
    with one_sentence(r"storage.use: mooncake: .* does not load \(libcudart.so.13: cannot open"):
        make(MooncakeConfig(f"127.0.0.1:{master.port}"), context)


def test_doctor_tries_the_client_in_a_process(
    master: Server, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = stepwell_checks()
    found = check.run()
    assert found.level == "ok" and "mooncake-transfer-engine" in found.text and found.text.endswith("loads")

    def broken() -> None:
        raise subprocess.CalledProcessError(1, "python", stderr="Traceback\nImportError: libx.so: cannot open\n")

    monkeypatch.setattr(wheel, "_probe", broken)
    found = check.run()
    assert found.level == "fail" and "(ImportError: libx.so: cannot open)" in found.text
    installed(next(iter(wheel.WHEELS)), lacking=("libibverbs.so.1",))
    assert check.run().level == "warn"
    installed()
    assert check.run() == Finding("ok", "no client is installed, so storage mooncake cannot be chosen")


def test_the_offer_imports_no_client() -> None:
    code = "import sys, stepwell_mooncake as s; s.stepwell_storages()[0].missing(); print('mooncake' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "False"
