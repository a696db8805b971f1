"""`stepwell eplb` and `stepwell bench eplb`, as typed; every mistake in a file is a sentence."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from stepwell import ConfigError
from stepwell_eplb.bench.command import eplb
from stepwell_eplb.cli.files import read_counts, read_placement
from stepwell_eplb.cli.plan import plan
from stepwell_eplb.cli.simulate import simulate
from stepwell_eplb.draw import draw, drifted


@pytest.fixture
def counts(tmp_path):
    def written(content, name="counts.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return written


def run(command, *arguments):
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit | ConfigError), result.exception
    return result


def sentence(command, *arguments):
    """What a mistake is answered with; exit status 2, either way."""
    result = run(command, *arguments)
    if isinstance(result.exception, ConfigError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    assert result.exit_code == 2
    return result.output.strip().splitlines()[-1]


LOAD = draw("served", 0, layers=4, experts=32)


def test_plan_tells_of_each_layer_and_draws_what_ranks_have_to_do(counts, tmp_path):
    file = counts({"logical_count": [[0] * 32, *LOAD.tolist()]})
    svg, html = tmp_path / "heat.svg", tmp_path / "heat.html"
    result = run(plan, file, "--ranks", 8, "--redundant", 8, "--svg", svg, "--html", html)
    assert result.exit_code == 0
    assert "40 slots on 8 ranks" in result.output and "1 layers without tokens" in result.output
    assert "deepseek: max/mean" in result.output and "load over the mean" in result.output
    assert len(ElementTree.parse(svg).findall("{*}rect")) == 2 * 5 * 8
    assert "<svg" in html.read_text() and "http" not in html.read_text().replace("http://www.w3.org/2000/svg", "")


def test_a_plan_is_written_and_read_back_as_where_experts_stand(counts, tmp_path):
    out, options = tmp_path / "placed.json", ("--ranks", 8, "--slots", 40, "--json")
    first = json.loads(run(plan, counts(LOAD.tolist()), *options, "--out", out).output)
    assert first["physical_to_logical_map"] == json.loads(out.read_text())["physical_to_logical_map"]
    later = counts(drifted(LOAD, 1).tolist(), "later.json")
    again = run(plan, later, *options, "--current", out, "--balancer", "incremental", "--budget", 0.1)
    told = json.loads(again.output)
    before, after = ([layer[when] for layer in told["layers"]] for when in ("before", "after"))
    assert 0 < told["moves"] <= 16 and np.mean(after) < np.mean(before)
    moved = np.array(told["physical_to_logical_map"]) != np.array(first["physical_to_logical_map"])
    assert moved.sum() == told["moves"] == sum(layer["moves"] for layer in told["layers"])


def test_steps_of_a_file_are_added_up_for_a_plan(counts):
    steps = np.stack([LOAD, 2 * LOAD])
    told = [json.loads(run(plan, counts(load.tolist()), "--ranks", 4, "--json").output) for load in (steps, 3 * LOAD)]
    assert told[0]["layers"] == told[1]["layers"]


def test_whole_numbers_written_with_a_point_are_whole(counts):
    file = Path(counts("[[1.0, 2.0]]"))
    assert read_counts(file).tolist() == [[[1, 2]]]
    assert read_placement(file).experts.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[[1, 2], [3]]", "not equally long"),
        ("[[1, -2]]", "number [0][1] is -2"),
        ("[[1, NaN]]", "no number"),
        ("[[1, null]]", "no number"),
        ('[[1, "2"]]', "no number"),
        ("[[1, 0.5]]", "number [0][1] is 0.5"),
        ("[[1, 1e300]]", "larger than any count"),
        ("[[1, Infinity]]", "larger than any count"),
        ("[[1, 123456789012345678901234567890]]", "too large"),
        ("[[true, false]]", "no number"),
        ("[]", "[layers][experts]"),
        ("[[]]", "[layers][experts]"),
        ("[1, 2]", "[layers][experts]"),
        ("3", "list of lists"),
        ('{"counts": [[1]]}', "no 'logical_count'"),
        ("[[0, 0]]", "no expert got a token"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_bad_file_is_a_sentence(counts, content, words):
    said = sentence(plan, counts(content), "--ranks", 1)
    assert words in said and "counts.json" in said


def test_a_file_that_is_none_is_a_sentence(tmp_path):
    assert "No such file" in sentence(plan, tmp_path / "none.json", "--ranks", 1)
    assert "cannot be read" in sentence(plan, tmp_path, "--ranks", 1)
    (tmp_path / "latin.json").write_bytes(b'["\xff"]')
    assert "UTF-8" in sentence(plan, tmp_path / "latin.json", "--ranks", 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ranks", 5), "32 slots do not divide over 5 ranks; --redundant 3 would"),
        (("--ranks", 8, "--slots", 24), "24 slots are too few for 32 experts"),
        (("--ranks", 8, "--nodes", 3), "8 ranks do not divide over 3 nodes"),
        (("--ranks", 8, "--groups", 5), "32 experts do not divide into 5 groups"),
        (("--ranks", 8, "--slots", 40, "--redundant", 4), "disagree"),
        (("--ranks", 0), "--ranks"),
        (("--ranks", 10**12), "--ranks"),
        (("--ranks", 8, "--budget", 0.1), "deepseek has no such setting"),
        (("--ranks", 8, "--balancer", "nobody"), "nothing installed offers it"),
        (("--ranks", 8, "--balancer", "incremental", "--target", 0.5), "--target"),
        (("--ranks", 8, "--out", "/proc/none/x"), "cannot be written"),
    ],
)
def test_options_that_do_not_fit_are_a_sentence(counts, options, words):
    assert words in sentence(plan, counts(LOAD.tolist()), *options)


def test_a_current_placement_that_does_not_fit_is_a_sentence(counts):
    load = counts(LOAD.tolist())
    for content, words in (([[0, 1]], "[1, 2]"), ([[0] * 32] * 4, "lacks expert 1"), ([[-1]], "counted from 0")):
        said = sentence(plan, load, "--ranks", 8, "--current", counts(content, "now.json"))
        assert words in said and "now.json" in said


def test_simulate_plans_when_loads_shift_and_not_when_they_are_even(counts):
    pytest.importorskip("stepwell_transformers")
    even = counts(np.full((2, 16), 100).tolist(), "even.json")
    hot = np.full((2, 16), 100)
    hot[:, 0] = 20_000
    options = ("--ranks", 4, "--redundant", 8, "--tokens", 200_000, "--json", "--half-life", 20, "--gap", 20)
    # Sixteen experts in 24 slots in order are not even: the first eight have two replicas.
    shift = ("--below", 0.6, "--steps", 120)
    still = json.loads(run(simulate, even, even, *options, *shift).output)["steps"]
    assert len(still) == 120 and not any(step["planned"] for step in still)
    moved = json.loads(run(simulate, even, counts(hot.tolist(), "hot.json"), *options, *shift).output)["steps"]
    assert sum(step["planned"] for step in moved) >= 1 and sum(step["moves"] for step in moved) > 0
    assert moved[-1]["ratio"] < moved[-1]["still"] - 0.3
    again = json.loads(run(simulate, even, counts(hot.tolist(), "hot.json"), *options, *shift).output)["steps"]
    assert again == moved


def test_simulate_replays_the_steps_of_a_file_a_few_layers_at_a_time(counts):
    pytest.importorskip("stepwell_transformers")
    steps = np.repeat(draw("zipf", 1, layers=6, experts=16)[None], 40, axis=0)
    file = counts(steps.tolist())
    told = json.loads(run(simulate, file, "--ranks", 4, "--redundant", 8, "--gap", 5, "--layers", 2, "--json").output)
    changed = [step["layers"] for step in told["steps"] if step["layers"]]
    assert changed[:3] == [2, 2, 2] and max(changed) == 2
    table = run(simulate, file, "--ranks", 4, "--redundant", 8, "--gap", 5)
    assert table.exit_code == 0 and "unmoved" in table.output


def test_simulate_refuses_files_of_different_models(counts):
    pytest.importorskip("stepwell_transformers")
    one, other = counts([[1, 2]]), counts([[1, 2, 3]], "other.json")
    assert "1x3 layers and experts" in sentence(simulate, one, other, "--ranks", 1)


def test_bench_tells_of_speed_quality_and_repair():
    result = run(eplb, "--layers", 3, "--experts", 32, "--slots", 40, "--ranks", 8, "--rounds", 1, "--json")
    told = json.loads(result.output)
    assert told["speed"][0]["ratio"] > 0 and all(row["above"] == 0 for row in told["quality"])
    assert all(row["moved"] <= 0.07 and row["after"] <= row["stale"] for row in told["repair"])
    assert "max/mean" in run(eplb, "--layers", 2, "--experts", 32, "--slots", 40, "--ranks", 8, "--rounds", 1).output
    assert "do not divide" in sentence(eplb, "--ranks", 31)
