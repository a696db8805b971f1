"""Draw what the benches on a GPU found: one plot a bench, from what `--json` printed.

    python docs/gpu_plots.py decode.json prefill.json overlap.json hit.json transfer.json

Each goes to docs/pages/gpu-BENCH.svg.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

PAGES = Path(__file__).resolve().parent / "pages"
LEFT, TOP, HEIGHT, FOOT = 56, 56, 200, 58
BAR, GAP, APART = 30, 4, 26
COLOURS = ("#2f6f4f", "#ca3c25", "#8a8f98", "#2a6fdb", "#e08a1e")
STYLE = "text{font:12px system-ui,sans-serif;fill:#222}.t{font-size:13px}"

Found = Mapping[str, Any]
"""What a bench printed as JSON."""


@dataclass(frozen=True)
class Bars:
    """Groups of bars, one bar a series; a value that is not there leaves a gap."""

    title: str
    unit: str
    groups: Mapping[str, Sequence[float | None]]
    series: Sequence[str]
    top: float | None = None
    """Where the axis ends; unset: just above the highest bar."""
    lines: Mapping[str, float] | None = None
    """Values that are marked across the plot."""


def main() -> None:
    """Draw each file."""
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
        bench = found.get("bench", "transfer" if "link_gb_s" in found else None)
        if bench not in PLOTS:
            raise SystemExit(f"{name} is of no bench that has a plot; have {', '.join(PLOTS)}")
        path = PAGES / f"gpu-{bench}.svg"
        path.write_text(draw(PLOTS[bench](found)), encoding="utf-8")
        print(path)


# --- what each bench shows -------------------------------------------------------------------------------------------


def decode(found: Found) -> Bars:
    """Share of the floor at each point, ours and theirs."""
    variants = list(dict.fromkeys((row["fuse"], row["graphs"]) for row in found["rows"]))
    groups: dict[str, list[float | None]] = {}
    for row in found["rows"]:
        one = groups.setdefault(point(row), [None] * (len(variants) + 1))
        one[variants.index((row["fuse"], row["graphs"]))] = 100 * row["share"]
        if row.get("against_ms"):
            one[-1] = 100 * row["floor_ms"] / row["against_ms"]
    names = [f"fuse {fuse}, graphs {graphs}" for fuse, graphs in variants] if len(variants) > 1 else ["Stepwell"]
    title = f"{found['model']}: decode, share of reading weights, K and V at the memory's speed"
    return Bars(title, "%", groups, [*names, "generate_batch"], 100)


def point(row: Found) -> str:
    """Batch and context, short."""
    context = row["context"]
    return f"{row['batch']} x {f'{context // 1024}k' if context % 1024 == 0 else context}"


def prefill(found: Found) -> Bars:
    """TFLOP/s of whole prompts, and of second halves."""
    groups: dict[str, list[float | None]] = {}
    for row in found["rows"]:
        groups.setdefault(f"{row['tokens']:,} tokens", [None, None])[1 if row["cached"] else 0] = row["tflop_s"]
    peak = found["ceilings"]["matrix_tflop_s"]
    title = f"{found['model']}: prompts, TFLOP/s"
    return Bars(title, "", groups, ["whole", "half cached"], 1.05 * peak, {"large matrix product": peak})


def overlap(found: Found) -> Bars:
    """A step with loads beside its parts."""
    groups = {f"{row['suffix']:,}": [row["together_ms"], row["compute_ms"], row["copy_ms"]] for row in found["rows"]}
    title = f"{found['model']}: tokens after {found['hit']:,} in host memory, ms a step"
    return Bars(title, "", groups, ["with loads", "compute alone", "copies alone"])


def hit(found: Found) -> Bars:
    """How many times sooner the first token comes."""
    groups = {f"{row['prefix']:,} tokens": [row["ratio"], row["allowed"]] for row in found["rows"]}
    title = f"{found['model']}: first token of a prefix in host memory, times sooner than computing it"
    return Bars(title, "x", groups, ["measured", "link and FLOPs allow"])


def transfer(found: Found) -> Bars:
    """GB/s by page and direction, of the method that comes first."""
    groups: dict[str, list[float | None]] = {}
    for row in found["rows"]:
        groups.setdefault(f"page {row['page']}, {row['direction']}", [row["gb_s"], row["memcpy_loop_gb_s"]])
    link = {"one large copy": max(found["link_gb_s"][way] for way in ("h2d", "d2h"))}
    return Bars(
        "Copies of scattered pages, GB/s", "", groups, ["Stepwell", "cudaMemcpyAsync, page by page"], lines=link
    )


PLOTS: Mapping[str, Callable[[Found], Bars]] = {
    "decode": decode,
    "prefill": prefill,
    "overlap": overlap,
    "hit": hit,
    "transfer": transfer,
}


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw(bars: Bars) -> str:
    """As SVG."""
    values = [value for group in bars.groups.values() for value in group if value is not None]
    top = bars.top or 1.15 * max([*values, *(bars.lines or {}).values()])
    shown = [n for n, _ in enumerate(bars.series) if any(group[n] is not None for group in bars.groups.values())]
    inside = len(shown) * (BAR + GAP) - GAP
    width = max(LEFT + (inside + APART) * len(bars.groups) + 16, 8 * len(bars.title), LEFT + 190 * len(shown))
    wide = (width - LEFT - 8) / len(bars.groups)

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - min(value, top) / top)

    parts = ['<rect width="100%" height="100%" fill="white"/>']
    parts.append(f'<text class="t" x="{LEFT}" y="20">{escape(bars.title)}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}v{HEIGHT}H{width - 8}" fill="none" stroke="#888"/>')
    for mark in (0.0, top / 2, top):
        parts.append(f'<text x="{LEFT - 6}" y="{y(mark) + 4:.0f}" text-anchor="end">{mark:.0f}{bars.unit}</text>')
    for at, (name, group) in enumerate(bars.groups.items()):
        start = LEFT + at * wide + (wide - inside) / 2
        for place, series in enumerate(shown):
            if (value := group[series]) is not None:
                x, high = start + place * (BAR + GAP), y(value)
                parts.append(
                    f'<rect x="{x:.0f}" y="{high:.1f}" width="{BAR}" height="{TOP + HEIGHT - high:.1f}" '
                    f'fill="{COLOURS[place % len(COLOURS)]}"/>'
                )
                parts.append(
                    f'<text x="{x + BAR / 2:.0f}" y="{high - 4:.0f}" text-anchor="middle">{number(value)}</text>'
                )
        middle = start + inside / 2
        parts.append(f'<text x="{middle:.0f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{escape(name)}</text>')
    for name, value in (bars.lines or {}).items():
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{width - 8}" stroke="#c33" stroke-dasharray="4 3"/>')
        parts.append(
            f'<text x="{width - 8}" y="{y(value) - 4:.0f}" text-anchor="end">{escape(name)} {number(value)}</text>'
        )
    for place, series in enumerate(shown):
        x, foot = LEFT + 190 * place, TOP + HEIGHT + 34
        parts.append(f'<rect x="{x}" y="{foot}" width="12" height="12" fill="{COLOURS[place % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 18}" y="{foot + 11}">{escape(bars.series[series])}</text>')
    size = f"{width} {TOP + HEIGHT + FOOT}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def number(value: float) -> str:
    """As much of it as fits above a bar."""
    return f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
