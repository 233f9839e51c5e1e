"""Panels and figures as SVG text: no dependency, no script, legible in light and in dark."""

from collections.abc import Mapping

from pogm.benchmark.results.records import printable
from pogm.report.axes import BOTTOM, Axes, axes_of, tick_text
from pogm.report.escaping import escape
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Region
from pogm.report.marks import draw_marks
from pogm.report.style import STYLE, colour_class, colour_style, dashes

WIDTH = 340


def chart(
    panel: Panel,
    keys: Mapping[str, int] | None = None,
    *,
    width: int = WIDTH,
    height: int | None = None,
    at: tuple[int, int] | None = None,
) -> str:
    """One panel as an `<svg>` element; `at` places it inside another. Bands are ± one standard error."""
    axes = axes_of(panel, width, height)
    tall = axes.bottom + BOTTOM
    place = "" if at is None else f' x="{at[0]}" y="{at[1]}" width="{width}" height="{tall}"'
    names = ", ".join(dict.fromkeys(mark.name for mark in panel.marks if mark.name)) or "no data"
    says = f"{panel.title}: {panel.y_label} against {panel.x_label}, {names}"
    frame = f'x="{axes.left}" y="{axes.top}" width="{axes.width}" height="{axes.height}"'
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}"{place} '
        f'role="img" aria-label="{escape(says)}">',
        f'<text class="title" x="0" y="13">{escape(_shortened(panel.title, width // 8))}</text>',
        f'<text class="label" x="0" y="29">{escape(panel.y_label)}</text>',
        f'<text class="label end" x="{axes.right}" y="{tall - 5}">{escape(panel.x_label)}</text>',
        f'<g class="axes">{_axes(axes, upright=upright_grid(panel))}</g>',
        # The marks have a frame of their own: to zoom is to change its viewBox.
        f'<svg class="plot" {frame} viewBox="{axes.left} {axes.top} {axes.width} {axes.height}" '
        'preserveAspectRatio="none" overflow="visible">',
        *draw_marks(panel, axes, keys or {}),
        "</svg>",
        "</svg>",
    ]
    return "\n".join(filter(None, parts))


def upright_grid(panel: Panel) -> bool:
    """Return True if x is a measurement, as in a scatter plot, and not time."""
    return panel.square or not any(isinstance(mark, Line) for mark in panel.marks)


def legend(figure: Figure) -> dict[str, Mark]:
    """Every name once, as it is drawn where it comes first."""
    named = (mark for panel in figure.panels for mark in panel.marks if mark.name and not isinstance(mark, Label))
    found: dict[str, Mark] = {}
    for mark in named:
        found.setdefault(mark.name, mark)
    return found


def picture(figure: Figure, *, width: int, height: int) -> str:
    """A figure as one SVG file, its panels in a row and a legend on top: its own style, on white."""
    inner = (width - 48 * len(figure.panels)) // len(figure.panels)
    keys, x = [], 24
    for mark in legend(figure).values():
        keys.append(f'<g transform="translate({x} 22)">{_sample(mark)}</g>')
        keys.append(f'<text class="key" x="{x + 30}" y="30">{escape(mark.name)}</text>')
        x += 56 + sum(10 if letter.isupper() else 7 for letter in printable(mark.name))  # about its width
    panels = [
        chart(panel, width=inner, height=height - 72, at=(24 + (inner + 48) * column, 56))
        for column, panel in enumerate(figure.panels)
    ]
    return "\n".join(
        [
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(figure.title)}" color="#1b1f24">',
            f"<style>{STYLE}{colour_style(standalone=True)}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *keys,
            *panels,
            "</svg>\n",
        ]
    )


def swatch(mark: Mark) -> str:
    """A small piece of a mark, for a legend in HTML."""
    return f'<svg class="chart swatch" viewBox="0 0 22 8" aria-hidden="true">{_sample(mark)}</svg>'


def _sample(mark: Mark) -> str:
    if isinstance(mark, Cloud):
        drawn = '<path class="dots" d="M11,4h0"/>'
    elif isinstance(mark, Region):
        drawn = f'<path class="region" {dashes(mark)}d="M2,0H20V8H2Z"/>'
    elif isinstance(mark, Arrow):
        drawn = '<path class="shaft" d="M1,4H18"/><path class="head" d="M22,4L12,0V8Z"/>'
    else:
        drawn = f'<path class="line" {dashes(mark)}d="M1,4H21"/>'
    return f'<g class="{colour_class(mark)}">{drawn}</g>'


def _axes(axes: Axes, *, upright: bool) -> str:
    parts = []
    for tick in axes.y_ticks:
        y, kind = axes.y(tick), "axis" if tick in (0, axes.y_range[0]) else "grid"
        parts.append(f'<line class="{kind}" x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{axes.left - 7}" y="{y + 3.5:.1f}">{tick_text(tick)}</text>')
    for tick in axes.x_ticks:
        x, kind = axes.x(tick), "axis" if tick == 0 else "grid"
        if upright:
            parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{axes.top}" y2="{axes.bottom}"/>')
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{axes.bottom + 16}">{tick_text(tick)}</text>')
    return "".join(parts)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
