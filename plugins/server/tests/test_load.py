"""The load test itself, against a real server, and its judgement."""

from __future__ import annotations

import json
import subprocess
import sys

from server_process import environment, real

from stepwell_server.load_report import Found, spread


def test_load_on_a_real_server_is_clean(tmp_path):
    with real(tmp_path, "runner.pace=0.001") as server:
        options = ["--clients", "16", "--seconds", "4", "--prefix-words", "20", "--admin-key", "root", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "stepwell", "server", "load", server.url, *options],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found["completed"] > 20
        assert found["aborted"] > 0
        assert found["errors"] == {}
        assert found["cached_share"] > 0.1
        assert found["audit"] == "clean"
        assert found["rest"]["pages_free"] + found["rest"]["pages_tree_only"] == found["rest"]["pages_total"] == 256
        assert {"launcher", "front", "engine"} <= set(found["memory"][-1])


def test_load_without_a_server_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", "server", "load", "http://127.0.0.1:9"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_percentiles():
    assert spread([]) is None
    assert spread([3.0]).p99 == 3.0
    values = spread([float(i) for i in range(100)])
    assert (values.p50, values.p90, values.p99, values.max) == (50.0, 90.0, 99.0, 99.0)


def test_what_is_not_clean():
    good = Found(1, 1.0, 5, 0, {}, 5, 5.0, 0.0, None, None, [], {"running": 0.0}, "clean")
    assert good.clean
    for change in ({"errors": {"x": 1}}, {"rest": {"pages_held": 3.0}}, {"audit": "wrong"}, {"completed": 0}):
        bad = Found(**{name: getattr(good, name) for name in Found.__struct_fields__} | change)
        assert not bad.clean
