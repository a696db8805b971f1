"""Replay a trace on three layer mixes, with windows and without, and write the page and the plot of what that brings.

    python docs/hybrid_capacity.py conversation_trace.jsonl

Each replay is one `stepwell replay`, as the page says it. Figures are kept in build/hybrid-capacity, one file a replay;
a file that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.models import read_shape
from stepwell.replay.trace import load
from stepwell.types import GroupSpec

DOCS = Path(__file__).resolve().parent
KEPT = DOCS.parent / "build" / "hybrid-capacity"
PAGES = DOCS / "pages"
MIXES = {
    "gpt-oss-like": "12 full, 12 with a window of 128",
    "gemma-3-like": "10 full, 52 with a window of 1,024",
    "mimo-like": "4 full, 36 with a window of 128",
}
HOST = (0.02, 0.05, 0.10)
"""Host memory, as a share of what all distinct prompt tokens of the trace take where every layer keeps everything."""
DEVICE = 0.01
COMMON = (
    *("replay.devices=8", "cache.page_size=128", "cache.typical_tokens=12288"),
    "write.use=write_through",
)
GIB = 2**30

Found = Mapping[str, Any]
"""A replay's figures, as `--json` has them."""


@dataclass(frozen=True)
class Run:
    """One replay."""

    mix: str
    host: float
    windows: bool
    device_gib: float
    host_gib: float

    @property
    def file(self) -> Path:
        """Where its figures are kept."""
        return KEPT / f"{self.mix}-{self.host:g}-{'windows' if self.windows else 'full'}.json"

    def options(self) -> list[str]:
        """As the command line has them."""
        sizes = (f"cache.device_gib={self.device_gib}", f"cache.host_gib={self.host_gib}")
        sets = (*COMMON, *sizes, *(() if self.windows else ("replay.windows=false",)))
        model = f"docs/pages/models/{self.mix}.json"
        return ["--model", model, "--with-answers", *(word for one in sets for word in ("--set", one))]


def main() -> None:
    """Replay what was not yet, then write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    arrivals = load(asked.trace)
    distinct = len({block for arrival in arrivals for block in arrival.ids.tolist()}) * arrivals[0].block
    runs = [one for mix in MIXES for share in HOST for one in pair(mix, share, distinct)]
    KEPT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = dict(zip(runs, pool.map(lambda run: replay(asked.trace, run), runs), strict=True))
    (PAGES / "hybrid-capacity.svg").write_text(plot(found), encoding="utf-8")
    (PAGES / "hybrid-capacity.md").write_text(page(found, distinct, len(arrivals)), encoding="utf-8")


def pair(mix: str, share: float, distinct: int) -> list[Run]:
    """With windows and without, in the same memory."""
    token = sum(group.token_bytes for group in shape(mix))
    device, host = (round(part * distinct * token / GIB, 1) for part in (DEVICE, share))
    return [Run(mix, share, windows, device, host) for windows in (False, True)]


def shape(mix: str) -> tuple[GroupSpec, ...]:
    """Groups of a mix."""
    return read_shape(json.loads((PAGES / "models" / f"{mix}.json").read_text())).groups()


def replay(trace: Path, run: Run) -> Found:
    """The figures of one replay."""
    if not run.file.exists():
        argv = [sys.executable, "-m", "stepwell", "replay", str(trace), "--json", *run.options()]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=DOCS.parent)
        run.file.write_text(done.stdout)
        print(run.file.name, flush=True)
    return json.loads(run.file.read_text())


# --- the plot --------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP = 250, 150, 62, 46
"""Of a panel, and what lies around it."""
COLOURS = {True: "#2f6f4f", False: "#ca3c25"}
ROWS: tuple[tuple[str, Callable[[Found], float]], ...] = (
    ("requests restorable, mean", lambda found: found["restorable"]["mean"]),
    ("prompt tokens hit, %", lambda found: 100 * found["all"]["hit_share"]),
)


def plot(found: Mapping[Run, Found]) -> str:
    """A column for each mix, a row for each figure; lines with windows and without over the size of host memory."""
    parts = ['<rect width="100%" height="100%" fill="white"/>', *legend()]
    for column, mix in enumerate(MIXES):
        for row, (label, value) in enumerate(ROWS):
            lines = {
                windows: [value(figures) for run, figures in found.items() if (run.mix, run.windows) == (mix, windows)]
                for windows in COLOURS
            }
            parts += panel(LEFT + column * (WIDTH + LEFT), TOP + 20 + row * (HEIGHT + TOP), f"{mix}: {label}", lines)
    size = f"{LEFT + len(MIXES) * (WIDTH + LEFT)} {TOP + 20 + len(ROWS) * (HEIGHT + TOP)}"
    style = "text{font:12px system-ui,sans-serif;fill:#222}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{style}</style>{"".join(parts)}</svg>\n'
    )


def legend() -> list[str]:
    """What the colours mean."""
    names = {True: "window layers cached as windows", False: "all layers cached in full"}
    return [
        f'<circle cx="{LEFT + at * 260}" cy="20" r="5" fill="{COLOURS[windows]}"/>'
        f'<text x="{LEFT + at * 260 + 12}" y="24">{name}</text>'
        for at, (windows, name) in enumerate(names.items())
    ]


def panel(x: int, y: int, title: str, lines: Mapping[bool, list[float]]) -> list[str]:
    """One figure of one mix."""
    top = 1.15 * max(value for values in lines.values() for value in values)

    def place(share: float, value: float) -> tuple[float, float]:
        return x + share / HOST[-1] * WIDTH, y + HEIGHT * (1 - value / top)

    parts = [f'<text x="{x}" y="{y - 8}">{title}</text>', f'<path d="M{x} {y}v{HEIGHT}h{WIDTH}" ' + AXIS]
    for share in HOST:
        parts.append(
            f'<text x="{place(share, 0)[0]:.0f}" y="{y + HEIGHT + 16}" text-anchor="middle">{share:.0%}</text>'
        )
    for value in (0.0, top / 2.3, top / 1.15):
        parts.append(f'<text x="{x - 6}" y="{place(0, value)[1] + 4:.0f}" text-anchor="end">{value:,.0f}</text>')
    for windows, values in lines.items():
        points = [place(share, value) for share, value in zip(HOST, values, strict=True)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[windows]}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{COLOURS[windows]}"/>' for px, py in points]
    return parts


AXIS = 'fill="none" stroke="#888"/>'

# --- the page --------------------------------------------------------------------------------------------------------


def page(found: Mapping[Run, Found], distinct: int, requests: int) -> str:
    """What was replayed, how, and what it found."""
    example = next(run for run in found if run.windows)
    sets = " \\\n    ".join(words(example))
    return TEXT.format(
        requests=f"{requests:,}",
        distinct=f"{distinct / 1e6:.1f}",
        mixes="\n".join(mix_row(mix) for mix in MIXES),
        rows="\n".join(rows(found)),
        command=f"$ stepwell replay conversation_trace.jsonl \\\n    {sets}",
    )


def words(run: Run) -> Iterator[str]:
    """Options, two words a line where they belong together."""
    flat = iter(run.options())
    for word in flat:
        yield word if word == "--with-answers" else f"{word} {next(flat)}"


def mix_row(mix: str) -> str:
    """A mix: its layers, what a token takes, and how much less a long prefix takes at best."""
    full, swa = shape(mix)
    token = full.token_bytes + swa.token_bytes
    return f"| [{mix}](models/{mix}.json) | {MIXES[mix]} | {token:,} | {token / full.token_bytes:.1f} |"


def rows(found: Mapping[Run, Found]) -> Iterator[str]:
    """A row for each pair: in full, with windows, and the ratio of what could be restored."""
    pairs = list(found.items())
    for (run, full), (_, windows) in zip(pairs[::2], pairs[1::2], strict=True):
        cells = [run.mix, f"{run.host:.0%} = {run.host_gib:,.0f} GiB"]
        ratio = windows["restorable"]["mean"] / full["restorable"]["mean"]
        cells += [f"{full['restorable']['mean']:,.0f} → {windows['restorable']['mean']:,.0f} ({ratio:.2f}x)"]
        cells += [f"{full['restorable']['last']:,} → {windows['restorable']['last']:,}"]
        for figure, unit in ((share_of_hits, "%"), (moved, ""), (device_seconds, "")):
            cells.append(f"{figure(full)}{unit} → {figure(windows)}{unit}")
        yield f"| {' | '.join(cells)} |"


def share_of_hits(found: Found) -> str:
    """Of all prompt tokens."""
    return f"{100 * found['all']['hit_share']:.1f}"


def moved(found: Found) -> str:
    """Between device and host, in TB."""
    return f"{sum(found['bytes_moved'].values()) / 1e12:.1f}"


def device_seconds(found: Found) -> str:
    """GPU-seconds a million tokens."""
    return f"{found['gpu_seconds_per_million_tokens']:.1f}"


TEXT = """# What windows bring

How many more requests does the same memory hold where window layers are cached as windows? Measured by replaying the
Mooncake conversation trace, {requests} requests, through the cache as it serves: once with windows, once with every
layer cached in full (`replay.windows=false`). The arithmetic is the same in both, only what is kept differs.

| model | layers | bytes a token | at most |
|---|---|---|---|
{mixes}

Each is a shape, not a model: those fields of a config that count. *At most* is what the bytes of a token allow, if
windows took nothing.

![Requests restorable and prompt tokens hit over host memory, for the three mixes](hybrid-capacity.svg)

| model | host memory | restorable, mean | restorable, end | tokens hit | TB moved | GPU-s a million tokens |
|---|---|---|---|---|---|---|
{rows}

In each cell *all in full → with windows*. *Restorable* are the finished requests that could go on from where they
ended with nothing computed again, counted after each 1,000 requests: the mean of those counts, and the last. Host
memory is given as the share of what the trace's {distinct} million distinct prompt tokens take where every layer keeps
everything; device memory holds 1%.

## How to read it

- Memory that holds twice the tokens does not make twice the hits: what comes back soon is found in either. The smaller
  the memory, the more windows bring.
- A window is kept where a request ended (`retain.use=tail`). A prompt that leaves an earlier one on its way, as all do
  behind a shared system prompt, finds full attention there and, once memory is short, no window. So with ample memory
  windows can hit a little less. Retention policies that keep windows at such points are a plugin.
- Of a conversation that was evicted and computed again, full caching has all earlier ends back, `tail` only the new
  one. This, too, keeps the ratio below what bytes alone say.

## Do it again

```console
{command}
```

and the same with `--set replay.windows=false`, with the other models and sizes; or all of it, page and plot, by
`python docs/hybrid_capacity.py conversation_trace.jsonl` in a checkout. One replay takes about half a minute of one
core. Pages have 128 tokens, no more than the shortest window: larger ones would keep more than it. `--with-answers`
matters: the trace's ids hide that a prompt holds the answer before it, and without that a window at the end of an
answer is never found
([Replay](replay.md#models-with-windows)).
"""


if __name__ == "__main__":
    main()
