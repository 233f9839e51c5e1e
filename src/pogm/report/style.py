"""The look of charts: a palette, dashes past its end, and the classes that the drawings carry."""

from pogm.report.figure import Mark

# Okabe & Ito's colours, told apart by colour-blind readers too; the yellow, faint on white, is left out.
# Each has a lighter twin for dark pages. Past the seventh, colours come again with dashes.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#e69f00", "#3fa7dd", "#5b5b5b")
DARK = ("#4fa8e0", "#ff8a3d", "#2cc69b", "#e29ac4", "#f2bd4b", "#8fd0f5", "#b9b9b9")
DASHES = ("none", "6 3", "2 3")

# Strokes keep their width however a chart is scaled or zoomed.
STYLE = """
.chart { overflow: visible; }
.chart text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  fill: currentColor; stroke: none; font-variant-numeric: tabular-nums; }
.chart .key { font-size: 14px; }
.chart .title { font-size: 13px; font-weight: 600; }
.chart .tick, .chart .label { opacity: .65; }
.chart .end { text-anchor: end; }
.chart .middle { text-anchor: middle; }
.chart .grid { stroke: currentColor; stroke-opacity: .12; }
.chart .axis { stroke: currentColor; stroke-opacity: .45; }
.chart .line, .chart .dots, .chart .shaft, .chart .region { stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; vector-effect: non-scaling-stroke; }
.chart .line, .chart .dots, .chart .shaft { fill: none; }
.chart .dots { stroke-width: 6; stroke-opacity: .8; }
.chart .many { stroke-width: 4; stroke-opacity: .45; }
.chart .region { stroke-width: 1; fill-opacity: .1; stroke-opacity: .8; }
.chart .shaft { stroke-width: 2; stroke-linecap: butt; }
.chart .head { stroke: none; }
.chart .band { stroke: none; opacity: .18; }
.chart .note { font-size: 12px; text-anchor: middle; stroke-width: 3; paint-order: stroke; }
.chart .hover { fill: transparent; stroke: none; }
.chart .hover:hover { fill: currentColor; fill-opacity: .25; }
"""


def colour_style(*, standalone: bool = False) -> str:
    """The palette as classes `s0`, `s1`, …: following the page, or one light set for a picture."""
    names = range(len(LIGHT))
    colours = LIGHT if standalone else [f"var(--s{i})" for i in names]
    classes = "".join(f".s{i} {{ color: {c}; stroke: {c}; fill: {c}; }}\n" for i, c in enumerate(colours))
    classes += f".chart .note {{ stroke: {'#fff' if standalone else 'var(--ground)'}; }}\n"  # a halo
    if standalone:  # shown on its own white ground, by programs that may not know variables
        return classes
    light, dark = ("".join(f"--s{i}: {palette[i]}; " for i in names) for palette in (LIGHT, DARK))
    return f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"


def colour_class(mark: Mark) -> str:
    """The class of its colour."""
    return f"s{mark.colour % len(LIGHT)}"


def dashes(mark: Mark) -> str:
    """Its dashes as an attribute; nothing for a solid line."""
    dash = DASHES[mark.colour // len(LIGHT) % len(DASHES)]
    return "" if dash == "none" else f'stroke-dasharray="{dash}" '
