"""Heat maps of layers and ranks: in the terminal, and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np
from rich.text import Text

from stepwell_eplb.cli.quality import Floats

STEPS = ((0.8, " ", ""), (1.02, "·", "green"), (1.1, "░", "green"), (1.25, "▒", "yellow"), (1.5, "▓", "red"))
HOTTEST = ("█", "bold red")
LEGEND = "load over the mean:  ' ' under 0.8   · to 1.02   ░ to 1.1   ▒ to 1.25   ▓ to 1.5   █ above"
CELL, GAP, HEAD = 10, 24, 20


def in_terminal(maps: Sequence[tuple[str, Floats]], width: int) -> list[Text]:
    """A line for each layer, maps side by side; ranks that do not fit are drawn together, by the hottest of them."""
    room = max(8, (width - 6) // len(maps) - 2)
    head = Text("      ")
    for name, heat in maps:
        head.append(f"{name:<{min(room, heat.shape[1]) + 2}.{min(room, heat.shape[1]) + 2}}")
    lines = [head]
    for layer in range(len(maps[0][1])):
        line = Text(f"{layer:>4}  ")
        for _, heat in maps:
            for ratio in _narrowed(heat[layer], room):
                line.append(*_cell(ratio))
            line.append("  ")
        lines.append(line)
    return lines


def _narrowed(row: Floats, room: int) -> list[float]:
    return [float(part.max()) for part in np.array_split(row, min(room, len(row)))]


def _cell(ratio: float) -> tuple[str, str]:
    return next(((sign, style) for limit, sign, style in STEPS if ratio <= limit), HOTTEST)


def svg(maps: Sequence[tuple[str, Floats]]) -> str:
    """The same as a drawing; what is pointed at says its number."""
    parts, x = [], 0
    for name, heat in maps:
        layers, ranks = heat.shape
        parts.append(f'<text x="{x}" y="{HEAD - 6}">{escape(name)}</text>')
        for layer in range(layers):
            for rank in range(ranks):
                ratio = float(heat[layer, rank])
                parts.append(
                    f'<rect x="{x + rank * CELL}" y="{HEAD + layer * CELL}" width="{CELL}" height="{CELL}" '
                    f'fill="{_colour(ratio)}"><title>layer {layer}, rank {rank}: {ratio:.3f}</title></rect>'
                )
        x += ranks * CELL + GAP
    height = HEAD + len(maps[0][1]) * CELL
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - GAP}" height="{height}" font-size="12">'
    return "\n".join([opening, *parts, "</svg>"])


def _colour(ratio: float) -> str:
    """From blue, for nothing to do, over white, for the mean, to red, for twice that and more."""
    away = min(1.0, abs(ratio - 1))
    fade = round(255 * (1 - away))
    return f"#ff{fade:02x}{fade:02x}" if ratio > 1 else f"#{fade:02x}{fade:02x}ff"


def page(title: str, lines: Sequence[str], maps: Sequence[tuple[str, Floats]]) -> str:
    """One HTML page that fetches nothing."""
    said = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>'
        "<style>body{font-family:sans-serif;margin:2em}</style></head>"
        f"<body><h1>{escape(title)}</h1>{said}\n{svg(maps)}\n</body></html>"
    )
