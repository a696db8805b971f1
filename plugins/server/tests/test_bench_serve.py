"""The command: an engine in process, a server of its own, one behind a URL, and mistakes of the user."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from click.testing import CliRunner
from server_process import environment, real

from stepwell.cli import root
from stepwell_server.bench.results import FORMAT, Report

SIM = ("--set", "runner.use=sim", "--set", "cache.device_pages=512")
SMALL = ("--requests", "6", "--input-tokens", "20-40", "--output-tokens", "8", "--warmup", "0")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("STEPWELL_PLUGINS", "stepwell-server")

    def run(*options: str):
        done = CliRunner().invoke(root, ["bench", "serve", *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done

    return run


def report(done) -> Report:
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.stdout, type=Report, strict=True)


def test_an_engine_in_process(bench):
    found = report(bench(*SIM, *SMALL, "--concurrency", "1,3", "--seed", "7", "--gpu-price", "3", "--json"))
    assert (found.format, found.seed, found.target.kind, found.target.prompts_as) == (FORMAT, "7", "process", "tokens")
    assert {"python", "stepwell", "stepwell-server"} <= found.versions.keys()
    assert found.machine.cores > 0
    assert found.date.endswith("+00:00")
    assert ("runner.use", "'sim'") in [(one.name, one.value) for one in found.config]
    assert [level.value for level in found.levels] == [1, 3]
    for level in found.levels:
        assert (level.completed, level.failed, level.output_tokens) == (6, 0, 48)
        assert 6 * 20 <= level.prompt_tokens <= 6 * 40
        assert level.cached_tokens == 0
        assert level.client.most_running == level.value
        assert 0 < level.ttft_s.p50 <= level.ttft_s.p99 <= level.ttft_s.max
        assert level.ttft_s.max <= level.e2e_s.max
        assert level.output_tokens_per_s == pytest.approx(48 / level.seconds, rel=0.01)
        assert level.price.per_million_output == pytest.approx(
            level.price.gpu_seconds_per_million_output * 3 / 3600, rel=1e-3
        )


def test_shared_prefixes_are_found_in_the_cache(bench):
    options = ("--prompts", "shared", "--groups", "2", "--prefix-tokens", "96", "--concurrency", "1", "--json")
    (level,) = report(bench(*SIM, *SMALL, *options)).levels
    assert level.cached_tokens == 4 * 96  # all but the first of each group; pages hold 16 tokens


def test_sessions_find_their_history_in_the_cache(bench):
    options = ("--prompts", "sessions", "--turns", "3", "--concurrency", "2", "--json", "--no-ignore-eos")
    (level,) = report(bench(*SIM, *SMALL, *options)).levels
    assert level.completed == 6
    assert level.cached_tokens > 0


def test_requests_at_a_rate(bench):
    (level,) = report(bench(*SIM, *SMALL, "--rate", "50", "--requests", "20", "--json")).levels
    assert (level.kind, level.completed) == ("rate", 20)
    assert 0.1 < level.seconds < 3
    assert level.client.late_max_s >= 0


def test_for_some_seconds(bench):
    (level,) = report(
        bench(*SIM, "--set", "runner.pace=0.005", "--seconds", "0.3", "--warmup", "0", "--concurrency", "2", "--json",
              "--input-tokens", "20", "--output-tokens", "10")
    ).levels  # fmt: skip
    assert 0.2 < level.seconds <= 0.3
    assert level.completed > 2


def test_a_trace_at_its_times_and_without_them(bench, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 100 * i, "input_length": 64, "output_length": 4, "hash_ids": [0, i + 1]} for i in range(4)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--trace", str(trace), "--block-tokens", "32", "--warmup", "0", "--json")
    (timed,) = report(bench(*SIM, *options, "--speed", "2")).levels
    assert (timed.kind, timed.completed, timed.cached_tokens) == ("speed", 4, 3 * 32)
    assert timed.seconds > 0.15
    (level,) = report(bench(*SIM, *options, "--concurrency", "1", "--requests", "3")).levels
    assert (level.kind, level.completed, level.prompt_tokens) == ("concurrency", 3, 3 * 64)


def test_the_table_fits_and_the_page_stands_alone(bench, tmp_path):
    page = tmp_path / "page.html"
    done = bench(*SIM, *SMALL, "--concurrency", "1,2", "--html", str(page), "--gpus", "1")
    assert done.exit_code == 0, done.output
    assert "sim in process: random prompts of 20-40 tokens, answers of 8, as tokens" in done.stdout
    assert "GPU-s per M" in done.stdout
    assert "concurrency 2: 6 requests in" in done.stderr
    text = page.read_text()
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "<script" not in text


def test_secrets_of_the_command_line_are_not_told(bench, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stepwell", "bench", "serve", "--set", "server.api_key=hunter2"])
    done = bench(*SIM, *SMALL, "--concurrency", "1", "--set", "server.api_key=hunter2", "--json")
    assert "hunter2" not in done.stdout
    assert "server.api_key=***" in report(done).command


def test_a_server_behind_a_url(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "k")
    with real(tmp_path, "runner.pace=0.001", "server.api_key=k") as server:
        options = ("--url", server.url, "--api-key-env", "BENCH_KEY", *SMALL, "--concurrency", "2", "--json")
        for send in ("text", "chat", "tokens"):
            vocab = ("--vocab", "256") if send == "tokens" else ()
            found = report(bench(*options, "--send", send, *vocab))
            (level,) = found.levels
            assert (found.target.kind, found.target.model, found.target.summary) == ("url", "sim", [])
            assert (level.completed, level.output_tokens) == (6, 48)
            assert level.client.cpu_share is not None
            if send == "text":  # a token is a letter here, so the trial had to find the right number of words
                assert 6 * 12 < level.prompt_tokens < 6 * 60
            if send == "tokens":
                assert 6 * 20 <= level.prompt_tokens <= 6 * 40
        found = report(bench(*options, "--send", "chat", "--prompts", "sessions", "--turns", "3"))
        assert found.levels[0].cached_tokens > 0
        wrong = bench("--url", server.url, *SMALL)
        assert wrong.exit_code == 2
        assert "--api-key-env" in wrong.stderr


def test_a_server_of_its_own(tmp_path):
    argv = [sys.executable, "-m", "stepwell", "bench", "serve", "--http", *SIM, *SMALL, "--concurrency", "2", "--json"]
    done = subprocess.run(argv, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=Report)
    assert (found.target.kind, found.target.model, found.target.prompts_as) == ("served", "sim", "text")
    assert found.levels[0].completed == 6


def test_ctrl_c_prints_what_was_measured(tmp_path):
    argv = [sys.executable, "-m", "stepwell", "bench", "serve", *SIM, "--set", "runner.pace=0.01", "--warmup", "0"]
    argv += ["--concurrency", "1,2", "--requests", "1000", "--output-tokens", "8", "--input-tokens", "16", "--json"]
    process = subprocess.Popen(
        argv, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert "starting the engine" in process.stderr.readline()
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (level,) = msgspec.json.decode(out, type=Report).levels
    assert level.cut
    assert 0 < level.completed < 1000
    assert level.failed == 0


def test_the_schema_says_what_each_figure_is(bench):
    schema = json.loads(bench("--json-schema").stdout)
    level = schema["$defs"]["Level"]
    assert {"ttft_s", "itl_s", "tpot_s", "e2e_s", "failures", "cached_tokens"} <= level["properties"].keys()
    assert schema["$ref"] == "#/$defs/Report"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--concurrency", "1,x"), "no list of whole numbers"),
        (("--concurrency", "0"), "above 0"),
        (("--rate", "nan"), "above 0"),
        (("--input-tokens", "9-3"), "no range"),
        (("--output-tokens", "many"), "neither a number of tokens"),
        (("--concurrency", "1", "--rate", "2"), "--concurrency and --rate exclude each other"),
        (("--prompts", "sessions", "--rate", "2"), "sessions wait for their answers"),
        (("--prompts", "sessions", "--http", "--send", "tokens"), "--send text or chat"),
        (("--prompts", "trace"), "--prompts trace and --trace FILE go together"),
        (("--trace", "none.jsonl"), "none.jsonl"),
        (("--speed", "2"), "--speed is for --trace"),
        (("--send", "chat"), "add --http, or --url"),
        (("--url", "http://127.0.0.1:9", "--http"), "--url measures a server that runs"),
        (("--url", "127.0.0.1:9"), "write it as http://HOST:PORT/v1"),
        (("--url", "http://user:secret@127.0.0.1:9"), "use the option for keys"),
        (("--url", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH"), "NO_SUCH"),
        (("--api-key-env", "HOME"), "--api-key-env is for --url"),
        (("--vocab", "100", "--url", "http://127.0.0.1:9"), "--vocab is for --send tokens"),
        (("--html", "no/such/folder/x.html"), "no such folder"),
        ((*SIM, "--input-tokens", "9000"), "has room for 8192"),
        (("--set", "runner.use=nothing"), "nothing"),
    ],
)
def test_a_mistake_is_one_sentence(bench, options, why):
    done = bench(*options)
    assert done.exit_code == 2, done.output
    assert why in done.stderr
    assert "Traceback" not in done.stderr
