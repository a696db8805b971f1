"""The page of a comparison, from two replays to thirty."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from stepwell.cli.replay_show import brief, compared_rows, folded
from stepwell.replay.axes import Log, exact, seconds, shares, times
from stepwell.replay.compare import Combination, Outcome, grid, policies, sweeps
from stepwell.replay.html import compared_page, page
from stepwell.replay.result import Hits, Result

SIZES = "cache.device_pages=1024,4096,16384"
GRIDS = {
    "two": grid(policies(["fcfs,lpm:max_passes=16"]), []),
    "one": grid(policies(["fcfs"]), []),
    "sizes": grid([], sweeps([SIZES])),
    "words": grid([], sweeps(["evict.use=lru,lfu<&>"])),
    "thirty": grid(policies([",".join(f"lpm:max_passes={number}" for number in range(10))]), sweeps([SIZES])),
    "dashed": grid(policies([",".join(f"p{number}" for number in range(30))]), []),
    "grid": grid(policies(["fcfs,lpm"]), sweeps([SIZES, "speed=1,2"])),
}


@pytest.mark.parametrize("name", GRIDS)
def test_a_page_is_well_formed_fetches_nothing_and_runs_nothing(name: str) -> None:
    text = _page(_outcomes(GRIDS[name]))
    tree = _tree(text)
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)
    assert not [one.tag for one in tree.iter() if one.tag in ("script", "link", "img", "iframe", "object")]
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<[^>]*>", "", text))
    for element in tree.iter():
        for key in ("x", "y", "cx", "cy", "x1", "width", "height", "points"):
            assert all(math.isfinite(float(n)) for n in re.split(r"[ ,]", element.get(key, "0")) if n), element.attrib


@pytest.mark.parametrize("name", GRIDS)
def test_everything_that_is_drawn_lies_within_its_plot(name: str) -> None:
    for svg in _tree(_page(_outcomes(GRIDS[name]))).iter("svg"):
        if "viewBox" not in svg.attrib:
            continue
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for element in svg.iter():
            for key, bound in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert -4 <= float(element.get(key, 0)) <= bound, (element.tag, element.attrib)
            for point in element.get("points", "").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_every_combination_is_in_the_tables_and_in_the_plots() -> None:
    outcomes = _outcomes(GRIDS["thirty"])
    tree = _tree(_page(outcomes))
    names = [combination.name for combination, _ in outcomes]
    rows = [row.text_of for row in map(_Row, tree.iter("tr"))]
    assert sum(any(name in cells for name in names) for cells in rows) == 2 * 30 + 1  # decide, work, and all numbers
    tips = [title.text or "" for title in tree.iter("title")]
    for name in names:
        assert sum(tip.startswith(f"{name}: p5 ") for tip in tips) == 3  # TTFT, latency and waiting
        assert any(tip.startswith(f"{name}: p99 ") for tip in tips)
    lines = [one for one in tree.iter("polyline")]
    assert len(lines) == 2 * 30 + 3 * 10  # distributions; and over the sizes a line a policy in three plots


def test_policies_keep_their_colour_and_later_ones_are_dashed() -> None:
    text = _page(_outcomes(GRIDS["dashed"]))
    strokes = re.findall(r'<polyline [^>]*stroke="var\((--c\d)\)"[^>]*?(?:stroke-dasharray="([\d ]+)")?/>', text)
    assert len(strokes) == 60
    assert len(set(strokes)) == 30
    assert all(f"{colour}:" in text for colour, _ in strokes)  # the style defines it


def test_ratios_are_to_the_first_and_say_what_is_better() -> None:
    first, second = GRIDS["two"]
    text = _page([(first, _result(1.0)), (second, _result(0.5))])
    assert "fcfs is the baseline" in text
    better, worse = (re.findall(f'<small class="{word}">([^<]*)</small>', text) for word in ("better", "worse"))
    assert better == ["0.50x"] * 5 + ["2.00x"]  # times, and tokens a second
    assert worse == []
    assert re.findall('<small class="even">([^<]*)</small>', text) == ["1.00x"]  # hits


def test_lines_run_over_the_setting_with_most_values_once_for_each_of_the_others() -> None:
    tree = _tree(_page(_outcomes(GRIDS["grid"])))
    headings = [one.text for one in tree.iter("h2")] + [one.text for one in tree.iter("h3")]
    assert "Over cache.device_pages" in headings
    assert headings.count("speed = 1") == headings.count("speed = 2") == 1
    dots = [title.text or "" for title in tree.iter("title") if " at 4096: " in (title.text or "")]
    assert len(dots) == 2 * 2 * 3  # policies, speeds, and plots


def test_nothing_finished_is_a_page_without_distributions() -> None:
    nothing = [(combination, Result(Hits(), Hits(), requests=3, refused=3)) for combination in GRIDS["grid"]]
    tree = _tree(_page(nothing))
    assert not [one.text for one in tree.iter("h2") if "take" in (one.text or "")]
    alone = _tree(page("x", {"as configured": nothing[0][1]}, [("requests", ["3"])]))
    assert len(list(alone.iter("svg"))) == 1


def test_a_page_says_what_all_have_in_common() -> None:
    outcomes = _outcomes(GRIDS["two"])
    for number, (_, result) in enumerate(outcomes):
        result.setup = {"preset": "a<b>", "device_pages": 4096, "schedule": str(number)}
    assert "400 requests, preset a&lt;b&gt;, device pages 4096." in _page(outcomes)


def test_a_page_names_the_settings_of_a_policy_that_all_its_replays_have() -> None:
    outcomes = _outcomes(GRIDS["two"])
    for (_, result), more in zip(
        outcomes, ({"schedule": "fcfs"}, {"schedule": "lpm", "schedule.depth": 0}), strict=True
    ):
        result.setup = {"speed": 2.0, "limit": None, "host_pages": 0, **more}
    assert "400 requests, speed 2, schedule.depth=0." in _page(outcomes)
    outcomes[0][1].setup["schedule"] = "lpm"  # whose depth is another
    assert "schedule.depth" not in _page(outcomes)


def test_experts_are_a_column_where_the_model_has_them() -> None:
    dense, sparse = (_outcomes(GRIDS["two"]) for _ in range(2))
    for _, result in sparse:
        result.experts_per_step = 61.5
    for outcomes, there in ((dense, False), (sparse, True)):
        assert ("experts a step" in _page(outcomes)) == there
        assert ("experts\na step" in dict(brief(outcomes))) == there


def test_what_is_quick_is_told_in_digits_that_tell_it_apart() -> None:
    first, second = _outcomes(GRIDS["two"])
    for number, (_, result) in enumerate((first, second)):
        result.ttft_s = [0.0031 + number * 0.0012] * 400
    rows = dict(compared_rows([first, second]))
    assert rows["TTFT mean, p50, p99"] == ["0.0031, 0.0031, 0.0031 s", "0.0043, 0.0043, 0.0043 s"]
    assert [text.split()[0] for text in dict(brief([first, second]))["TTFT\nmean s"]] == ["0.0031", "0.0043"]
    text = _page([first, second])
    assert "0.0031 s" in text
    assert "median 4.3 ms" in text


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("lpm:max_passes=16", ["lpm:max_passes=16"]),
        ("lpm:max_passes=16 device_pages=4096", ["lpm:max_passes=16", "device_pages=4096"]),
        ("choices:order.use=lpm:victim.use=fair", ["choices:order.use=lpm", ":victim.use=fair"]),
        ("p:sizes=[16,64,256,1024,4096,16384]", ["p", ":sizes=[16,64,256,1024,4", "096,16384]"]),
        ("", [""]),
    ],
)
def test_a_long_name_is_folded(name: str, lines: list[str]) -> None:
    assert folded(name).split("\n") == lines
    assert all(len(line) <= 24 for line in lines)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (0.003, 0.004), (0.02, 80.0), (0.0, 4000.0), (5.0, 5.0), (1, 2)])
def test_an_axis_of_times_holds_its_values_between_nice_bounds(low: float, high: float) -> None:
    axis = times([low, high], 100.0, 500.0)
    assert axis.low <= max(low, 1e-3)
    assert axis.high >= high
    assert 100.0 <= axis.at(low) <= axis.at(high) <= 500.0
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= axis.most
    assert all(axis.low * 0.99 <= tick <= axis.high * 1.01 for tick in ticks)


def test_axes_name_round_values() -> None:
    assert [seconds(value) for value in (0.001, 0.05, 1.0, 2.5, 20.0, 5000.0)] == [
        "1 ms",
        "50 ms",
        "1 s",
        "2.5 s",
        "20 s",
        "5,000 s",
    ]
    assert [exact(value) for value in (0.0, 0.000123, 0.00312, 0.0999, 0.638542, 1234.5)] == [
        "0.00",
        "0.000123",
        "0.00312",
        "0.0999",
        "0.64",
        "1,234.50",
    ]
    assert Log(1.0, 100.0, 0, 1).ticks() == [1, 10, 100]
    assert Log(1e-4, 1e5, 0, 1).ticks() == pytest.approx([1e-4, 1e-2, 1, 1e2, 1e4])
    assert shares([0.0, 0.31], 0, 1).ticks() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert shares([0.0], 0, 1).high == 1.0


class _Row:
    """The texts of a table's row."""

    def __init__(self, row: ElementTree.Element) -> None:
        self.text_of = ["".join(cell.itertext()) for cell in row]


def _tree(text: str) -> ElementTree.Element:
    assert text.startswith("<!DOCTYPE html>")
    return ElementTree.fromstring(text)


def _page(outcomes: Sequence[Outcome]) -> str:
    return compared_page("Replay of a<b>&.jsonl", outcomes, compared_rows(outcomes))


def _outcomes(combinations: Sequence[Combination]) -> list[Outcome]:
    return [(one, _result(1.0 + number % 7, number)) for number, one in enumerate(combinations)]


def _result(scale: float, seed: int = 0) -> Result:
    dice = np.random.default_rng(seed)
    waits = scale * np.maximum(0.0, dice.lognormal(0, 1.5, 400) - 1)
    ttft = waits + scale * dice.lognormal(-1, 0.5, 400)
    latency = ttft + scale * dice.lognormal(2, 0.5, 400)
    return Result(
        Hits(10**6, device=10**5, host=10**4),
        Hits(10**5),
        requests=400,
        finished=400,
        output_tokens=40_000,
        gpu_seconds=50.0,
        answered_s=100.0 * scale,
        ttft_s=ttft.tolist(),
        latency_s=latency.tolist(),
        waits_s=waits.tolist(),
    )
