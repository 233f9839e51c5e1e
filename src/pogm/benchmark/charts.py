"""Line charts as SVG text: no dependency, no script, legible in light and in dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from typing import NamedTuple

from pogm.benchmark.records import printable

# Okabe & Ito's colours, told apart by colour-blind readers too; the yellow, faint on white, is left out.
# Each has a lighter twin for dark pages. Past the seventh, colours come again with dashes.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#e69f00", "#3fa7dd", "#5b5b5b")
DARK = ("#4fa8e0", "#ff8a3d", "#2cc69b", "#e29ac4", "#f2bd4b", "#8fd0f5", "#b9b9b9")
DASHES = ("none", "6 3", "2 3")

STYLE = """
.chart { overflow: visible; }
.chart text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  fill: currentColor; font-variant-numeric: tabular-nums; }
.chart .key { font-size: 14px; }
.chart .title { font-size: 13px; font-weight: 600; }
.chart .tick, .chart .label { opacity: .65; }
.chart .end { text-anchor: end; }
.chart .middle { text-anchor: middle; }
.chart .grid { stroke: currentColor; stroke-opacity: .12; }
.chart .axis { stroke: currentColor; stroke-opacity: .45; }
.chart .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.chart .band { stroke: none; opacity: .18; }
.chart .hover { fill: transparent; stroke: none; }
.chart .hover:hover { fill: currentColor; fill-opacity: .25; }
"""


def colour_style(*, standalone: bool = False) -> str:
    """The palette as classes `s0`, `s1`, …: following the page, or one light set for a picture."""
    names = range(len(LIGHT))
    colours = LIGHT if standalone else [f"var(--s{i})" for i in names]
    classes = "".join(f".s{i} {{ color: {c}; stroke: {c}; fill: {c}; }}\n" for i, c in enumerate(colours))
    if standalone:  # shown on its own white ground, by programs that may not know variables
        return classes
    light, dark = ("".join(f"--s{i}: {palette[i]}; " for i in names) for palette in (LIGHT, DARK))
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"


class Point(NamedTuple):
    """A mean at x with its standard error over n values; NaN leaves a gap in the line."""

    x: float
    y: float
    spread: float = 0.0
    n: int = 1


@dataclass(frozen=True)
class Series:
    """One line: a name, its points, and its place in the palette."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0

    @property
    def css(self) -> str:
        return f"s{self.colour % len(LIGHT)}"

    @property
    def dash(self) -> str:
        return DASHES[self.colour // len(LIGHT) % len(DASHES)]


def escape(text: object) -> str:
    """Any name as inert text of HTML or XML."""
    return escape_html(printable(text))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) that span low to high."""
    if not high > low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def extent(series: Sequence[Series]) -> tuple[float, float] | None:
    """The lowest and highest value with its band; None where there is none."""
    points = [p for line in series for p in line.points if not math.isnan(p.y)]
    if not points:
        return None
    return min(p.y - p.spread for p in points), max(p.y + p.spread for p in points)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    y_range: tuple[float, float] | None = None,
    width: int = 340,
    height: int = 250,
    at: tuple[int, int] | None = None,
) -> str:
    """One `<svg>` element; `at` places it inside another. Bands are ± one standard error.

    Charts to be compared are given one `y_range`.
    """
    left, right, top, bottom = 40, 12, 44, 38
    low, high = y_range or extent(series) or (0.0, 1.0)
    y_ticks, x_ticks = nice_ticks(low, high), _x_ticks(series)
    to_x = _scale(x_ticks[0], x_ticks[-1], left, width - right)
    to_y = _scale(y_ticks[0], y_ticks[-1], height - bottom, top)
    place = "" if at is None else f' x="{at[0]}" y="{at[1]}" width="{width}" height="{height}"'
    names = ", ".join(line.name for line in series) or "no series"
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{place} '
        f'role="img" aria-label="{escape(f"{title}: {y_label} against {x_label}, {names}")}">',
        f'<text class="title" x="0" y="13">{escape(_shortened(title, width // 8))}</text>',
        f'<text class="label" x="0" y="29">{escape(y_label)}</text>',
        f'<text class="label end" x="{width - right}" y="{height - 5}">{escape(x_label)}</text>',
    ]
    for tick in y_ticks:
        y, text = to_y(tick), f"{tick:g}".replace("-", "−")
        kind = "axis" if tick in (0, y_ticks[0]) else "grid"
        parts.append(f'<line class="{kind}" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{left - 7}" y="{y + 3.5:.1f}">{text}</text>')
    for tick in x_ticks:
        x, text = to_x(tick), f"{tick / 1000:g}k" if tick >= 10000 else f"{tick:g}"
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{height - 22}">{text}</text>')
    # Bands under all lines, lines under all the points one can hover over.
    for draw in (_band, _line, _points):
        parts += [draw(line, to_x, to_y) for line in series]
    return "\n".join([*filter(None, parts), "</svg>"])


def standalone(charts: Sequence[str], legend: Sequence[Series], *, title: str, width: int, height: int) -> str:
    """Charts, placed by their `at`, as one SVG file with a legend on top: its own style, on white."""
    keys, x = [], 24
    for line in legend:
        keys.append(f'<line class="line {line.css}" {_dashed(line)}x1="{x}" x2="{x + 22}" y1="26" y2="26"/>')
        keys.append(f'<text class="key" x="{x + 30}" y="30">{escape(line.name)}</text>')
        x += 56 + sum(10 if letter.isupper() else 7 for letter in printable(line.name))  # about its width
    return "\n".join(
        [
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}" color="#1b1f24">',
            f"<style>{STYLE}{colour_style(standalone=True)}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *keys,
            *charts,
            "</svg>\n",
        ]
    )


def swatch(line: Series) -> str:
    """A short piece of a line, for a legend in HTML."""
    stroke = f'<line class="line {line.css}" {_dashed(line)}x1="1" x2="21" y1="4" y2="4"/>'
    return f'<svg class="chart swatch" viewBox="0 0 22 8" aria-hidden="true">{stroke}</svg>'


Scale = Callable[[float], float]


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _x_ticks(series: Sequence[Series]) -> list[float]:
    """Round steps; the axis ends a little after the last point at most, so that the lines fill it."""
    xs = [point.x for line in series for point in line.points] or [0.0, 1.0]
    return nice_ticks(min(xs), max(xs), count=5)


def _runs(line: Series) -> list[list[Point]]:
    """The stretches between gaps."""
    stretches: list[list[Point]] = [[]]
    for point in line.points:
        if math.isnan(point.y):
            stretches.append([])
        else:
            stretches[-1].append(point)
    return [stretch for stretch in stretches if stretch]


def _band(line: Series, to_x: Scale, to_y: Scale) -> str:
    areas = []
    for stretch in _runs(line):
        upper = [f"{to_x(p.x):.1f},{to_y(p.y + p.spread):.1f}" for p in stretch]
        lower = [f"{to_x(p.x):.1f},{to_y(p.y - p.spread):.1f}" for p in reversed(stretch)]
        if len(stretch) > 1 and any(p.spread for p in stretch):
            areas.append(f"M{' '.join(upper + lower)}Z")
    return f'<path class="band {line.css}" d="{" ".join(areas)}"/>' if areas else ""


def _line(line: Series, to_x: Scale, to_y: Scale) -> str:
    # A stretch of one point becomes a line of no length, which a round cap shows as a dot.
    paths = [
        "M" + " ".join(f"{to_x(p.x):.1f},{to_y(p.y):.1f}" for p in (stretch if stretch[1:] else stretch * 2))
        for stretch in _runs(line)
    ]
    return f'<path class="line {line.css}" {_dashed(line)}d="{" ".join(paths)}"/>' if paths else ""


def _points(line: Series, to_x: Scale, to_y: Scale) -> str:
    """Invisible discs that light up and say their numbers."""
    discs = []
    for p in (point for stretch in _runs(line) for point in stretch):
        spread = f" ± {p.spread:.3g}, n = {p.n}" if p.n > 1 else ""
        says = f"<title>{escape(f'{line.name}, step {p.x:g}: {p.y:.3g}{spread}')}</title>"
        discs.append(f'<circle class="hover" cx="{to_x(p.x):.1f}" cy="{to_y(p.y):.1f}" r="6">{says}</circle>')
    return f'<g class="{line.css}">{"".join(discs)}</g>' if discs else ""


def _dashed(line: Series) -> str:
    return "" if line.dash == "none" else f'stroke-dasharray="{line.dash}" '


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
