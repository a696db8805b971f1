"""What is wrong with a config is said in a sentence, before any Ray is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepwell.config import environment
from stepwell.errors import ConfigError
from stepwell_ray import lacking, stepwell_checks
from stepwell_ray.commands import deploy, on_loopback
from stepwell_ray.judge import Judged, judge
from stepwell_ray.parcel import Parcel
from stepwell_ray.settings import RaySettings
from stepwell_ray.told import State, progress, why

SIM = ("runner.use=sim", "cache.device_pages=64", "cache.host_pages=64", "server.port=8123")


def judged(*sets: str, env: dict[str, str] | None = None) -> Judged:
    return judge(None, env or {"HOME": "/nowhere"}, (*SIM, *sets))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["ray.replicas=0"], "less than 1"),
        (["ray.min_replicas=2"], "max_replicas is not set"),
        (["ray.min_replicas=4", "ray.max_replicas=2"], "less than the least"),
        (["ray.route_prefix=well"], "does not begin with a slash"),
        (["ray.resources.GPU=1"], "ray.gpus"),
        (["ray.replica=2"], "did you mean replicas"),
        (["ray.replicas=2", "storage.use=memory"], "'memory' is not shared"),
        (["ranks.dp=2"], "ray.replicas"),
        (["ranks.launcher=external"], "Ray"),
        (["route.use=nearest"], "cache-aware"),
        (["server.host=no.such.host", "server.port=0"], "no address of this machine"),
    ],
)
def test_mistakes(sets: Sequence[str], said: str) -> None:
    with pytest.raises(ConfigError, match=r".") as raised:
        judged(*sets)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_leaving_a_ray_of_its_own_behind_is_refused() -> None:
    sets = [part for one in SIM for part in ("--set", one)]
    result = CliRunner().invoke(deploy, ["ray", *sets, "--detach"])
    assert isinstance(result.exception, ConfigError)
    assert "ray start --head" in str(result.exception)
    both = CliRunner().invoke(deploy, ["ray", *sets, "--status", "--down"])
    assert isinstance(both.exception, ConfigError)


def test_replicas_ask_for_what_their_ranks_need() -> None:
    assert judged().gpus(there=True) == 0
    tp = {"ranks.tp": 2}
    assert judged("ray.gpus=0.5").gpus(there=False) == 0.5
    two = Judged(Parcel({}, {}, {}, "."), RaySettings(), "::1", 8000, tp["ranks.tp"], "auto", 1.0)
    assert (two.gpus(there=True), two.gpus(there=False)) == (2.0, 0.0)
    assert two.url == "http://[::1]:8000"


def test_a_parcel_holds_names_of_secrets_and_every_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "well.toml"
    file.write_text('[runner]\nuse = "sim"\n[server]\napi_key = { env = "WELL_KEY" }\n')
    monkeypatch.chdir(tmp_path)
    packed = Parcel.pack(file, {"WELL_KEY": "hidden", "STEPWELL_PLUGINS": "stepwell-server"}, ("cache.device_pages=9",))
    assert "hidden" not in repr(packed)
    monkeypatch.setenv("WELL_KEY", "found")
    from stepwell_server.settings import ServerSettings

    opened = packed.open()
    assert opened.bind("server", ServerSettings).api_key == "found"
    assert str(opened.origin("server", "api_key")) == f"{file}:4"
    assert opened.only == frozenset({"stepwell-server"})
    assert environment()["WELL_KEY"] == "found"


def test_without_ray_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = stepwell_checks()
    monkeypatch.setattr("stepwell_ray.find_spec", lambda name: None)
    assert "pip install" in lacking()
    assert check.run().level == "warn"
    with pytest.raises(ConfigError, match="Ray is not installed"):
        judged()


def test_judging_imports_no_ray() -> None:
    import subprocess

    code = (
        "import sys; from stepwell_ray.judge import judge; judge(None, {'HOME': '/x'}, %r); print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code % (SIM,)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_what_serve_says_of_a_failure_becomes_a_sentence() -> None:
    message = "Deployment failed\nTraceback (most recent call last):\n  x\nstepwell.errors.ConfigError: no such model\n"
    assert why(message) == "no such model"
    assert why("") != ""


def test_progress_and_a_loopback_ray() -> None:
    state = State("well", "DEPLOYING", "u", "", {"ingress": {"RUNNING": 1}, "engine": {"STARTING": 2, "RUNNING": 1}})
    assert progress(state) == "deploying  engine: 1 running, 2 starting  ingress: 1 running"
    env = {"RAY_USAGE_STATS_ENABLED": "1"}
    on_loopback(env)
    assert env["RAY_USAGE_STATS_ENABLED"] == "1"
    assert len(env) > 1


def test_replicas_follow_the_requests_there_are() -> None:
    from stepwell_ray.wanted import wanted

    assert wanted([40.0, 9.0], target=16, now=2) == 4
    assert wanted([0.0, 0.0], target=16, now=2) == 1
    assert wanted([], target=16, now=2) == 2, "nobody has reported yet"
