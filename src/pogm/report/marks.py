"""Each kind of mark as SVG, in layers: what covers little is drawn over what covers much."""

import math
from collections.abc import Callable, Mapping

from pogm.report.axes import Axes
from pogm.report.escaping import escape
from pogm.report.figure import Arrow, Cloud, Label, Line, Mark, Panel, Point, Region
from pogm.report.style import colour_class, dashes

MANY = 100  # dots, from where on they are small and sheer


def draw_marks(panel: Panel, axes: Axes, keys: Mapping[str, int]) -> list[str]:
    """All marks of a panel. `keys` numbers the names of the legend, by which its entries find what is theirs."""
    parts = []
    for kind, draw in LAYERS:
        for mark in panel.marks:
            if isinstance(mark, kind) and (drawn := draw(mark, axes)):
                key = f' data-key="{keys[mark.name]}"' if mark.name in keys else ""
                parts.append(f'<g class="{colour_class(mark)}"{key}>{drawn}</g>')
    return parts + [_hover(mark, axes, panel.x_label) for mark in panel.marks if isinstance(mark, Line)]


def _region(mark: Mark, axes: Axes) -> str:
    outline = " ".join(_at(point, axes) for point in filter(_known, mark.points))
    return f'<path class="region" {dashes(mark)}d="M{outline}Z"/>' if outline else ""


def _band(mark: Mark, axes: Axes) -> str:
    areas = []
    for stretch in _stretches(mark):
        upper = [_at(p._replace(y=p.y + p.spread), axes) for p in stretch]
        lower = [_at(p._replace(y=p.y - p.spread), axes) for p in reversed(stretch)]
        if len(stretch) > 1 and any(p.spread for p in stretch):
            areas.append(f"M{' '.join(upper + lower)}Z")
    return f'<path class="band" d="{" ".join(areas)}"/>' if areas else ""


def _dots(mark: Mark, axes: Axes) -> str:
    """Lines of no length, which a round cap shows as dots; they stay round however the chart is zoomed."""
    points = list(filter(_known, mark.points))
    path = "".join(f"M{_at(point, axes)}h0" for point in points)
    says = f"<title>{escape(f'{mark.name}, {len(points)} points')}</title>"
    return f'<path class="dots{" many" * (len(points) > MANY)}" d="{path}">{says}</path>' if points else ""


def _line(mark: Mark, axes: Axes) -> str:
    # A stretch of one point becomes a line of no length too.
    paths = [
        "M" + " ".join(_at(p, axes) for p in (stretch if stretch[1:] else stretch * 2)) for stretch in _stretches(mark)
    ]
    return f'<path class="line" {dashes(mark)}d="{" ".join(paths)}"/>' if paths else ""


def _arrow(mark: Mark, axes: Axes) -> str:
    start, end = mark.points[:2]
    if not (_known(start) and _known(end)) or start[:2] == end[:2]:
        return ""
    turn = math.degrees(math.atan2(axes.y(end.y) - axes.y(start.y), axes.x(end.x) - axes.x(start.x)))
    head = f'<path class="head" transform="rotate({turn:.1f})" d="M1.5,0 L-9,-4.2 L-7,0 L-9,4.2Z"/>'
    shaft = f'<path class="shaft" {dashes(mark)}d="M{_at(start, axes)} {_at(end, axes)}"/>'
    return shaft + _pin(end, axes, head)


def _label(mark: Mark, axes: Axes) -> str:
    point = mark.points[0]
    return _pin(point, axes, f'<text class="note" y="4">{escape(mark.name)}</text>') if _known(point) else ""


LAYERS: tuple[tuple[type[Mark], Callable[[Mark, Axes], str]], ...] = (
    (Region, _region),
    (Line, _band),
    (Cloud, _dots),
    (Line, _line),
    (Arrow, _arrow),
    (Label, _label),
)


def _hover(mark: Mark, axes: Axes, x_label: str) -> str:
    """Invisible discs that light up and say their numbers; the page's script, where it runs, does better."""
    discs = []
    for p in filter(_known, mark.points):
        spread = f" ± {p.spread:.3g}, n = {p.n}" if p.n > 1 else ""
        says = f"<title>{escape(f'{mark.name}, {x_label} {p.x:g}: {p.y:.3g}{spread}')}</title>"
        discs.append(f'<circle class="hover" cx="{axes.x(p.x):.1f}" cy="{axes.y(p.y):.1f}" r="6">{says}</circle>')
    return f'<g class="{colour_class(mark)}">{"".join(discs)}</g>' if discs else ""


def _at(point: Point, axes: Axes) -> str:
    return f"{axes.x(point.x):.1f},{axes.y(point.y):.1f}"


def _pin(point: Point, axes: Axes, drawn: str) -> str:
    """Something that keeps its size when its surroundings are zoomed."""
    return f'<g class="pin" transform="translate({axes.x(point.x):.1f} {axes.y(point.y):.1f})">{drawn}</g>'


def _known(point: Point) -> bool:
    return math.isfinite(point.x + point.y + point.spread)


def _stretches(mark: Mark) -> list[list[Point]]:
    """The points between gaps."""
    stretches: list[list[Point]] = [[]]
    for point in mark.points:
        if _known(point):
            stretches[-1].append(point)
        else:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]
