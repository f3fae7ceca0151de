"""A line chart as SVG, for light and for dark pages. Each series is labelled at its right end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 190, 40, 48
STEP = 10
"""The distance between two grid lines, in units of y."""
LEAST_GAP = 16
"""The smallest distance between two labels, in pixels."""

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a }
  .grid { stroke: #8c959f; stroke-opacity: .3 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }
  .s0 { stroke: #0969da } .f0 { fill: #0969da }
  .s1 { stroke: #1a7f37 } .f1 { fill: #1a7f37 }
  .s2 { stroke: #cf222e } .f2 { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b3 }
    .s0 { stroke: #58a6ff } .f0 { fill: #58a6ff }
    .s1 { stroke: #3fb950 } .f1 { fill: #3fb950 }
    .s2 { stroke: #ff7b72 } .f2 { fill: #ff7b72 }
  }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the chart, y over x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def svg(lines: Sequence[Series], *, x: str, y: str) -> str:
    """Return a chart of at most three lines over the same x, with a mark at each point; y starts at or below zero."""
    xs = lines[0].x
    low = STEP * math.floor(min(0.0, *(value for line in lines for value in line.y)) / STEP)
    high = STEP * math.ceil(max(value for line in lines for value in line.y) / STEP)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(value: float) -> float:
        return LEFT + (value - min(xs)) / (max(xs) - min(xs)) * (right - LEFT)

    def down(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - TOP)

    elements = [f'<text x="{LEFT}" y="20">{escape(y)}</text>']
    for tick in range(low, high + 1, STEP):
        elements.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{down(tick):.1f}" y2="{down(tick):.1f}"/>')
        elements.append(f'<text x="{LEFT - 10}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for tick in xs:
        elements.append(f'<text x="{across(tick):.1f}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>')
    elements.append(f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    names = _apart([down(line.y[-1]) + 4 for line in lines])
    for number, (line, name) in enumerate(zip(lines, names, strict=True)):
        points = [(across(a), down(b)) for a, b in zip(line.x, line.y, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        elements.append(f'<polyline class="line s{number}" points="{path}"/>')
        elements += [f'<circle class="f{number}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in points]
        elements.append(f'<text class="f{number}" x="{right + 12}" y="{name:.1f}">{escape(line.name)}</text>')
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([opening, f"<style>{STYLE}</style>", *elements, "</svg>", ""])


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return the heights of the labels, near their lines and without overlap."""
    placed = list(wanted)
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + LEAST_GAP)
    return placed
