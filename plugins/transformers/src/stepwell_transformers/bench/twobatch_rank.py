"""One rank of `stepwell bench twobatch`: times steps as one batch and as two halves, over links of several rates."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import torch

from stepwell import Row, StepwellError
from stepwell_transformers.bench import options
from stepwell_transformers.bench.rated import FREE_GB_S, Rated, named, rated
from stepwell_transformers.bench.report import progress
from stepwell_transformers.bench.rig import Rig, rigged
from stepwell_transformers.twobatch.decide import Size
from stepwell_transformers.twobatch.pace import Pace

CONTEXT = 64
"""Tokens before each row of a decode step."""
FIRST_GB_S = 1.0
MILLIONTHS = 1_000_000


class Asked(msgspec.Struct, frozen=True):
    """What a rank is to measure."""

    model: str
    device: str
    page_size: int
    rounds: int
    sets: tuple[str, ...]
    rank: int
    world: int
    meet: str
    dispatch: str
    prefill: tuple[int, ...]
    """Tokens of steps with one prompt."""
    decode: tuple[int, ...]
    """Rows of steps of decodes."""
    ratios: tuple[float, ...]
    """Of communication to computation."""
    steps: int


class Timed(msgspec.Struct, frozen=True):
    """Seconds of a step: the least of all turns, since whatever else a machine does only adds to them."""

    kind: str
    tokens: int
    ratio: float
    gb_per_s: float
    compute: float
    """As one batch, over a link that takes no time."""
    halves: float
    """As two halves, over the same."""
    serial: float
    """As one batch, over a link of this rate."""
    overlap: float
    """As two halves, over the same."""


class Switch(Pace):
    """Whether steps run as two halves, as the bench says."""

    on = False

    def wants(self, size: Size) -> bool:
        return self.on

    def begin(self) -> None:
        pass

    def end(self, size: Size, *, halved: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Scene:
    """A rig, its link, and what decides on halves."""

    rig: Rig
    link: Rated
    switch: Switch
    steps: int

    def step(self, plans: Callable[[int], Iterator[dict[str, object]]], gb_per_s: float, *, halves: bool) -> float:
        """Seconds of a step, behind a first one that does not count."""
        self.link.set(gb_per_s)
        self.switch.on = halves
        ends = self.rig.timed(plans(self.steps + 1))[1:]
        return min(end - begin for begin, end in pairwise(ends))

    def agreed(self, number: float) -> float:
        """The least that any rank says."""
        return self.rig.runner._model.group.least(int(number * MILLIONTHS))[0] / MILLIONTHS


def main(asked: Asked) -> list[Timed]:
    """Measure all that is asked."""
    setup = options.setup(asked.model, asked.device, asked.page_size, asked.rounds, asked.sets)
    device = torch.device(f"cuda:{asked.rank}" if asked.device == "cuda" else asked.device)
    place = replace(setup.place(), device=str(device), rank=asked.rank, world=asked.world, meet=asked.meet)
    if device.type == "cpu":
        torch.set_num_threads(1)
    part, links = rated(named(asked.dispatch, asked.sets))
    variant = setup.changed(dispatch=part, decode_dispatch="same", overlap=1, graphs=False)
    with (
        torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
        rigged(variant.settings, place, asked.page_size) as rig,
    ):
        needs = [rig.pages_for(1, 0, tokens) for tokens in asked.prefill]
        needs += [rig.pages_for(rows, CONTEXT, asked.steps + 1) for rows in asked.decode]
        pages = {group.name: max(need[group.name] for need in needs) for group in rig.groups}
        rig.open(pages, max([1, *asked.decode]), dict.fromkeys(pages, 8))
        overlap = rig.runner._opened.overlap
        if overlap is None:
            raise StepwellError("steps do not run as two halves here")
        overlap.pace = switch = Switch()
        scene = Scene(rig, links[0], switch, asked.steps)
        return [found for kind, count in _kinds(asked) for found in _timed(scene, asked, kind, count)]


def _kinds(asked: Asked) -> list[tuple[str, int]]:
    return [*(("prefill", tokens) for tokens in asked.prefill), *(("decode", rows) for rows in asked.decode)]


def _timed(scene: Scene, asked: Asked, kind: str, count: int) -> Iterator[Timed]:
    """One ratio after another; of each all four ways, in turn, so that what else the machine does meets them alike."""
    plans = _prefills(scene.rig, count) if kind == "prefill" else _decodes(scene.rig, count, asked.steps + 1)
    scene.step(plans, FREE_GB_S, halves=True)
    compute = scene.agreed(scene.step(plans, FREE_GB_S, halves=False))
    waits, rate = 0.0, FIRST_GB_S
    while waits < 2 * compute:
        rate /= 4
        waits = scene.agreed(scene.step(plans, rate, halves=False) - compute)
    for ratio in asked.ratios:
        gb_per_s = scene.agreed(rate * waits / (ratio * compute))
        times: dict[str, list[float]] = defaultdict(list)
        for turn in range(asked.rounds):
            for name, at, halves in (
                ("compute", FREE_GB_S, False),
                ("halves", FREE_GB_S, True),
                ("serial", gb_per_s, False),
                ("overlap", gb_per_s, True),
            ):
                times[name].append(scene.step(plans, at, halves=halves))
            if not asked.rank:
                progress(f"{kind} {count}, communication {ratio:g} of computation: turn {turn + 1} of {asked.rounds}")
        yield Timed(kind, count, ratio, gb_per_s, **{name: min(found) for name, found in times.items()})


def _prefills(rig: Rig, tokens: int) -> Callable[[int], Iterator[dict[str, object]]]:
    (seat,) = rig.seat(1, 0, tokens)
    row = Row(seat.slot, 0, tokens, rig.tokens(tokens), True)
    return lambda steps: iter([{"rows": (row,)}] * steps)


def _decodes(rig: Rig, rows: int, steps: int) -> Callable[[int], Iterator[dict[str, object]]]:
    seats = rig.seat(rows, CONTEXT, steps)
    return lambda steps: rig.decodes(seats, CONTEXT, steps)


if __name__ == "__main__":
    what = msgspec.json.decode(sys.argv[1], type=Asked)
    found = main(what)
    if not what.rank:
        print(msgspec.json.encode(found).decode(), flush=True)
