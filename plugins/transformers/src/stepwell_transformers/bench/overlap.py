"""Loads behind compute, saves behind decode: what of a copy shows in the time of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from stepwell import PageCopy
from stepwell_transformers.bench import ceilings as ceiling
from stepwell_transformers.bench.arithmetic import Overlap
from stepwell_transformers.bench.options import Setup
from stepwell_transformers.bench.report import about, ms, progress, show
from stepwell_transformers.bench.rig import Rig, Seat, rigged

SUFFIXES = (256, 512, 1024, 2048, 4096)
SMALL = (16, 64)
STEPS, WARM = 24, 4
COLUMNS = {
    "suffix": "suffix",
    "together_ms": "with loads ms",
    "compute_ms": "compute",
    "copy_ms": "copy",
    "exposed_ms": "exposed",
    "share": "of the copy",
    "bound": "bound by",
    "over": "over the longer",
    "good": "hidden",
}
DECODE_COLUMNS = {
    "batch": "batch",
    "context": "context",
    "ms": "ms/step",
    "saving_ms": "with saves",
    "slowed": "slowed",
}
LINK_COLUMNS = {
    "loads_gb_s": "loads",
    "saves_gb_s": "saves",
    "both_gb_s": "both at once",
    "two_way_gb_s": "sum of both",
}


def run(setup: Setup, hit: int, suffixes: Sequence[int], decode: tuple[int, int], as_json: bool) -> None:
    """Measure and print."""
    progress(f"making {setup.settings.model}")
    with rigged(setup.settings, setup.place(), setup.page_size) as rig:
        hit = hit // rig.page_size * rig.page_size
        batch, context = decode
        needs = [rig.pages_for(1, hit, suffix) for suffix in suffixes]
        needs.append(rig.pages_for(batch, context, STEPS + WARM))
        history = {group.name: -(-(hit - group.need.lo(hit)) // rig.page_size) + 1 for group in rig.groups}
        # Twice: pages that are saved in one of the measurements are not those that are loaded.
        pages = {g.name: max(max(need[g.name] for need in needs), 2 * history[g.name]) for g in rig.groups}
        rig.open(pages, max(1, batch), {name: 2 * count for name, count in history.items()})
        found = ceiling.measure(rig.device, rig.dtype)
        rows = hidden(rig, setup, hit, suffixes)
        link = both_ways(rig, setup, hit)
        saves = behind_decode(rig, setup, batch, context, link["saves_gb_s"])
        result = {"bench": "overlap", "model": setup.settings.model, "page": rig.page_size, "hit": hit}
        result |= about(rig.device) | {"ceilings": found.figures()}
    result |= {"rows": rows, "decode": saves, "link": link}
    show(result, COLUMNS, rows, as_json)
    if not as_json:
        show({}, DECODE_COLUMNS, [saves], as_json)
        show({}, LINK_COLUMNS, [link], as_json)


def hidden(rig: Rig, setup: Setup, hit: int, suffixes: Sequence[int]) -> list[dict[str, Any]]:
    """A row a suffix: the step with loads, its compute alone, and the copies alone, in turn."""
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    for turn in range(setup.rounds + 1):
        for suffix in suffixes:
            (seat,) = rig.seat(1, hit, suffix)
            (compute,) = rig.chunks(seat, hit, suffix, suffix)
            plans: dict[str, dict[str, object]] = {
                "together": compute | {"loads": _loads(rig, seat, hit)},
                "compute": compute,
                "copy": {"loads": _loads(rig, seat, hit)},
            }
            for name, plan in plans.items():
                begin, end = rig.timed(iter([plan]))
                if turn:
                    times[suffix, name].append(end - begin)
            progress(f"turn {turn}: {suffix} tokens after {hit} in host memory")
    rows = []
    for suffix in suffixes:
        together, compute_s, copy_s = (median(times[suffix, name]) for name in ("together", "compute", "copy"))
        one = Overlap(together, compute_s, copy_s)
        rows.append(
            {"suffix": suffix, "together_ms": ms(together), "compute_ms": ms(compute_s), "copy_ms": ms(copy_s)}
            | {"exposed_ms": ms(one.exposed), "share": round(one.share, 4), "bound": one.bound}
            | {"over": round(one.over, 4), "good": one.good}
        )
    return rows


def both_ways(rig: Rig, setup: Setup, hit: int) -> dict[str, Any]:
    """Loads alone, saves alone, and both at once, of as many bytes each."""
    (seat,) = rig.seat(1, hit, rig.page_size)
    nbytes = _bytes(rig, _loads(rig, seat, hit))
    times: dict[str, list[float]] = defaultdict(list)
    for turn in range(setup.rounds + 1):
        for name in ("loads", "saves", "both"):
            plan: dict[str, object] = {}
            if name != "saves":
                plan["loads"] = _loads(rig, seat, hit)
            if name != "loads":
                plan["saves"] = _saves(rig, seat, hit)
            begin = time.perf_counter()
            rig.step(**plan)
            rig.settle()
            if turn:
                times[name].append(time.perf_counter() - begin)
    loads, saves, both = (median(times[name]) for name in ("loads", "saves", "both"))
    rates = {"loads_gb_s": nbytes / loads, "saves_gb_s": nbytes / saves, "both_gb_s": 2 * nbytes / both}
    rates["two_way_gb_s"] = rates["loads_gb_s"] + rates["saves_gb_s"]
    return {"bytes": nbytes, **{name: round(rate / 1e9, 3) for name, rate in rates.items()}}


def behind_decode(rig: Rig, setup: Setup, batch: int, context: int, save_gb_s: float) -> dict[str, Any]:
    """Decode steps without saves, and with saves that keep the link busy for most of a step, in turn."""
    seats = rig.seat(batch, context, STEPS + WARM)
    history = rig.held(seats, context)
    means: dict[bool, list[float]] = defaultdict(list)
    count = 1
    for turn in range(setup.rounds + 1):
        for saving in (False, True):
            plans = rig.decodes(seats, context, STEPS + WARM)
            if saving:
                plans = ({**plan, "saves": (rig.copy(0, history[0][1][:count]),)} for plan in plans)
            ends = rig.timed(plans)[WARM:]
            rig.settle()
            took = (ends[-1] - ends[0]) / STEPS
            if turn:
                means[saving].append(took)
            elif not saving:  # four fifths of a step
                page_bytes = rig.groups[0].token_bytes * rig.page_size
                count = max(1, min(int(0.8 * took * save_gb_s * 1e9 / page_bytes), rig.host[0], len(history[0][1])))
        progress(f"turn {turn}: decode of {batch} x {context}, {count} pages saved a step")
    plain, saving_s = median(means[False]), median(means[True])
    return {"batch": batch, "context": context, "pages_a_step": count, "ms": ms(plain), "saving_ms": ms(saving_s)} | {
        "slowed": round(saving_s / plain - 1, 4)
    }


def _loads(rig: Rig, seat: Seat, hit: int) -> tuple[PageCopy, ...]:
    """Copies of all pages of the seat's history, from the first half of the host's pages."""
    return tuple(rig.copy(group, ids) for group, ids in rig.held([seat], hit))


def _saves(rig: Rig, seat: Seat, hit: int) -> tuple[PageCopy, ...]:
    """Copies of as many other pages to the second half."""
    return tuple(rig.copy(group, rig.others(group, ids), rig.host[group] // 2) for group, ids in rig.held([seat], hit))


def _bytes(rig: Rig, copies: Sequence[PageCopy]) -> int:
    return sum(rig.groups[copy.group].token_bytes * rig.page_size * len(copy.device) for copy in copies)
