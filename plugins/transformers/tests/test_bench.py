"""The benches at small sizes on the CPU: all of their code but the device's."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from click.testing import CliRunner

from stepwell.cli import root
from stepwell_transformers.bench.options import Limit, Point, Several, Tokens


def bench(*args):
    done = CliRunner().invoke(root, ["bench", *args])
    return done


def measured(*args, model="random/tiny"):
    args = (*args, "--model", model)
    done = bench(*args, "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["model"] == model
    assert {"torch", "transformers", "stepwell"} <= found["versions"].keys()
    assert {"date", "device", "command"} <= found.keys()
    assert all(rate > 0 for rate in found["ceilings"].values() if rate != 0)
    return found


def test_decode_beside_generate_batch():
    found = measured("decode", "--against", "generate_batch", "--point", "2x40", "--fuse", "off,auto")
    assert [(row["batch"], row["context"], row["fuse"]) for row in found["rows"]] == [(2, 40, "off"), (2, 40, "auto")]
    for row in found["rows"]:
        assert row["tokens_s"] == pytest.approx(2e3 / row["ms"], rel=0.5)
        assert row["against_ratio"] == pytest.approx(row["against_ms"] / row["ms"], abs=0.01)
    (other,) = found["against"]
    assert other["best"] and other["settings"] == "eager"


def test_prefill_whole_and_half_cached():
    found = measured("prefill", "--tokens", "64", "--tokens", "600")
    assert [(row["tokens"], row["cached"]) for row in found["rows"]] == [(64, 0), (64, 32), (600, 0), (600, 288)]
    assert all(row["tokens_s"] > 0 for row in found["rows"])


def test_two_ranks_against_one(monkeypatch, tiny):
    """Ranks as threads, which costs no imports; they cannot draw random weights at one time."""
    from stepwell_transformers.bench import spread, spread_rank

    def by_threads(asked, folder):
        with ThreadPoolExecutor(len(asked)) as pool:
            return next(iter(pool.map(spread_rank.main, asked)))

    monkeypatch.setattr(spread, "started", by_threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    args = ("spread", "--tp", "2", "--tokens", "40", "--point", "2x20", "--steps", "2", "--device", "cpu", "--json")
    done = bench(*args, "--model", str(tiny("llama")))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["what"] for row in found["rows"]] == ["prompt of 40", "decode 2 x 20"]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["one_ms"] / row["ms"], rel=0.01)
    assert [row["rows"] for row in found["sums"]] == [1, 8]
    for row in found["logits"]:
        assert row["same_most_likely"] == 1
        assert 0.99999 < row["cosine"] < 1.00001
        assert row["largest_difference"] < 1e-3


@pytest.mark.parametrize(("model", "token_bytes"), [("random/tiny", [2048]), ("random/tiny-windows", [1024, 1024])])
def test_overlap_of_loads_and_saves(model, token_bytes):
    found = measured("overlap", model=model)
    assert [row["suffix"] for row in found["rows"]] == [16, 64]
    for row in found["rows"]:
        assert row["exposed_ms"] == pytest.approx(max(0, row["together_ms"] - row["compute_ms"]), abs=1e-3)
        assert row["copy_ms"] > 0
    assert found["link"]["bytes"] == sum(
        one * tokens
        for one, tokens in zip(token_bytes, (64, 32), strict=False)  # of the window, the pages that hold 31 tokens
    )
    assert found["decode"]["pages_a_step"] >= 1


@pytest.mark.parametrize("model", ["random/tiny", "random/tiny-windows"])
def test_hits_come_from_host_memory(model):
    found = measured("hit", model=model)
    assert [row["prefix"] for row in found["rows"]] == [64, 256]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["compute_ms"] / row["hit_ms"], abs=0.01)


def test_a_burst_takes_memory_by_the_limit_and_not_by_its_size():
    args = ("--tokens", "256", "--prompts", "4", "--prompts", "12", "--limit", "64", "--limit", "off")
    out = alone("-m", "stepwell", "bench", "burst", *args, "--model", "random/tiny", "--device", "cpu", "--json")
    rows = {(row["limit"], row["prompts"]): row for row in json.loads(out)["rows"]}
    few, many, whole = rows[64, 4]["peak_mib"], rows[64, 12]["peak_mib"], rows["off", 12]["peak_mib"]
    assert whole > 4
    assert many < whole / 3
    assert many < 2 * few + 0.5
    for row in rows.values():
        assert 0 < row["first_ms"] <= row["mean_ms"] <= row["last_ms"]
    assert rows[64, 12]["first_ms"] < rows[64, 12]["last_ms"] / 4


PEAKS = """
import torch
from stepwell_transformers.bench.meter import MIB, metered

with metered(torch.device("cpu")) as meter:
    for size in (8, 32):
        meter.begin()
        for _ in range(3):
            torch.ones(size * MIB // 4)
        print(meter.peak() / MIB, meter.held)
"""


def test_a_peak_is_what_was_there_at_once():
    lines = [line.split() for line in alone("-c", PEAKS).splitlines()]
    assert len(lines) == 2
    for size, (peak, held) in zip((8, 32), lines, strict=True):
        assert size - 1 <= float(peak) < size + 4
        assert int(held) > 0


def alone(*args):
    """What a process says in which nothing else allocates meanwhile."""
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_for_people():
    done = bench("prefill", "--device", "cpu", "--tokens", "32")
    assert done.exit_code == 0, done.output
    assert "TFLOP/s" in done.stdout
    assert "making random/tiny" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["burst", "decode", "prefill", "overlap", "hit"])
def test_without_a_device_there_is_one_sentence(name):
    done = bench(name)
    assert done.exit_code == 2
    assert "torch finds none here; --device cpu" in done.output
    assert "Traceback" not in done.output


def test_windows_and_experts_decode_and_prefill():
    (row,) = measured("decode", "--point", "2x100", model="random/tiny-windows")["rows"]
    assert row["bytes"] < 4 * 1024 * 1024
    rows = measured("prefill", "--tokens", "200", model="random/tiny-windows")["rows"]
    assert [row["cached"] for row in rows] == [0, 96]


def test_what_is_too_long_for_the_model_is_left_out():
    done = bench("decode", "--device", "cpu", "--point", "1x64k")
    assert done.exit_code == 2
    assert "1 x 65536 is left out: the model's context is 32768" in done.output


def test_arguments():
    assert Tokens().convert("8k", None, None) == Tokens().convert("8,192", None, None) == 8192
    assert Point().convert("64x2k", None, None) == (64, 2048)
    assert [Limit().convert(text, None, None) for text in ("off", "2k", "64")] == [0, 2048, 64]
    assert Several("a", "b").convert("a, b", None, None) == ("a", "b")
    for wrong in (["--point", "8"], ["--point", "0x2k"], ["--point", "axb"], ["--fuse", "all"]):
        assert bench("decode", *wrong).exit_code == 2


def test_steady_counts_only_while_all_rows_decode():
    from stepwell_transformers.bench.against import steady

    rows = [[0.0, 1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.5]]
    assert steady(rows, 1) == pytest.approx(2 * 2.0 / 4)  # after 1.5 and until 3.5: 2, 3 and 2.5, 3.5
