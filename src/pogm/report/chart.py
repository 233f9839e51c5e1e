"""Vega-Lite specifications of figures. Pages and files draw the same specification.

Colours are CSS variables (`var(--s0)`), so that a chart on a page follows the colour scheme of the browser. For files,
`with_colours` replaces them by the colours of the light scheme.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pogm._system.terminal import printable
from pogm.report.figure import (
    Arrow,
    Cloud,
    Figure,
    Label,
    Line,
    Mark,
    Panel,
    Point,
    Range,
    Region,
    Row,
    x_extent,
    y_extent,
)

Spec = dict[str, Any]

# Colours of Okabe & Ito, which colour-blind readers can distinguish, without the yellow, which is too light on white.
# From the eighth mark on, the colours are repeated with dashes.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#e69f00", "#3fa7dd", "#5b5b5b")
DARK_PALETTE = ("#4fa8e0", "#ff8a3d", "#2cc69b", "#e29ac4", "#f2bd4b", "#8fd0f5", "#b9b9b9")
LIGHT = {"ground": "#ffffff", "ink": "#1b1f24", "muted": "#5d6670", "rule": "#e2e5e9"}
LIGHT |= {f"s{i}": colour for i, colour in enumerate(PALETTE)}
DARK = {"ground": "#14171b", "ink": "#e4e7eb", "muted": "#9aa4af", "rule": "#2d333b"}
DARK |= {f"s{i}": colour for i, colour in enumerate(DARK_PALETTE)}
DASHES = ((1, 0), (6, 3), (2, 3))

WIDTH, RATIO = 300, 0.6  # width of a panel in pixels, and its height divided by its width
AXIS, MARGIN = 44, 12  # pixels on the left and on the right of a panel
NAMES, ROW = 124, 26  # pixels of the names on the left of rows, and height of a row
SHORT, LONG_NAMES = 14, 154  # characters of names that fit into `NAMES`, and pixels if one is longer
MANY = 100  # a cloud with more dots has smaller dots
EMPTY: Spec = {"data": {"values": []}, "mark": "point"}  # a view without marks
IN_ORDER = {"value": None}  # lines connect points in the order of the data
INDEPENDENT = {"scale": dict.fromkeys(("color", "fill", "stroke", "strokeDash", "shape"), "independent")}
NUMBER = "abs({0}) >= 1e4 || ({0} != 0 && abs({0}) < 1e-3) ? format({0}, '.4~e') : format({0}, '.4~r')"
ZOOM: Spec = {  # drag moves the axes, the wheel with Ctrl zooms, a double click resets
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.ctrlKey || event.metaKey]"},
    "bind": "scales",
}
ARROW_HEAD = "M0.15,0L-1,-0.45L-0.8,0L-1,0.45Z"
KEY_SHAPES = {
    Cloud: "M-0.5,0A0.5,0.5,0,1,1,0.5,0A0.5,0.5,0,1,1,-0.5,0Z",
    Region: "M-0.9,-0.5L0.9,-0.5L0.9,0.5L-0.9,0.5Z",
    Arrow: "M-1,0L0.2,0M1,0L0.1,-0.45L0.1,0.45Z",
}
CONFIG: Spec = {
    "background": "var(--ground)",
    "font": "sans-serif",  # in files Liberation Sans, which comes with vl-convert; report.css has other fonts
    "view": {"stroke": None},
    "title": {
        "anchor": "start",
        "frame": "group",
        "dx": -AXIS,
        "fontSize": 13,
        "fontWeight": 600,
        "color": "var(--ink)",
        "subtitleColor": "var(--muted)",
        "subtitleFontSize": 11,
        "subtitlePadding": 4,
        "offset": 8,
    },
    "axis": {
        "gridColor": "var(--rule)",
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "ticks": False,
        "labelPadding": 6,
        "labelExpr": f"replace({NUMBER.format('datum.value')}, '-', '−')",
        "tickCount": 5,
    },
    "axisX": {"domainColor": "var(--muted)", "labelFlush": True, "titleAnchor": "end", "titlePadding": 2},
    "axisY": {"domain": False, "title": None, "minExtent": AXIS, "maxExtent": AXIS},
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 11,
        "labelLimit": 240,
        "symbolOpacity": 1,
        "title": None,
        "symbolStrokeWidth": 1.8,
        "symbolSize": 120,
    },
}


def specification(figure: Figure, *, width: int = WIDTH, columns: int = 3, letters: bool = False) -> Spec:
    """Return the Vega-Lite specification of a figure: the legend above a grid of panels.

    A page draws the panels one by one, with another grid and another legend.

    Args:
        figure: The figure.
        width: Width of a panel in pixels, without its axis.
        columns: Panels in a row.
        letters: Write (a), (b), … before the titles of the panels.
    """
    panels = [_panel(panel, width) for panel in figure.panels]
    for number, panel in enumerate(panels):
        if letters and len(panels) > 1:
            panel["title"]["text"] = f"({chr(ord('a') + number)}) {panel['title']['text']}"
    grid: Spec = {"concat": panels, "columns": columns, "spacing": {"row": 24, "column": 16}, "resolve": INDEPENDENT}
    rows = [grid] if panels else []
    if legend := figure.legend():
        rows.insert(0, _key(legend, max(1, columns * (width + AXIS) // 130)))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": printable(figure.title),
        "config": CONFIG,
        "padding": 4,
        "params": [{"name": "hidden", "value": []}],
        "vconcat": rows or [EMPTY],
        "resolve": INDEPENDENT,
        "spacing": 8,
    }


def static_panels(spec: Spec) -> Iterator[Spec]:
    """Yield the panels of a specification as separate specifications, without interaction."""
    shared = {name: spec[name] for name in ("$schema", "config", "padding", "params")}
    panels = spec["vconcat"][-1].get("concat", [])
    for panel in panels:
        layers = [layer for layer in panel["layer"] if layer.get("params", [ZOOM]) == [ZOOM]]
        yield shared | panel | {"layer": [{**layer, "params": []} for layer in layers]}


def with_colours(spec: Spec, colours: Mapping[str, str]) -> Spec:
    """Return a specification with values instead of CSS variables, for programs that do not know them."""
    text = re.sub(r"var\(--(\w+)\)", lambda found: colours.get(found[1], found[0]), json.dumps(spec))
    replaced: Spec = json.loads(text)
    return replaced


def colour_of(mark: Mark) -> str:
    """Return the colour of a mark as a CSS variable."""
    return f"var(--s{mark.colour % len(PALETTE)})"


def dashes_of(mark: Mark) -> tuple[int, int]:
    """Return the lengths of dash and gap of a mark, in pixels."""
    return DASHES[mark.colour // len(PALETTE) % len(DASHES)]


def _panel(panel: Panel, width: int) -> Spec:
    if any(isinstance(mark, Row) for mark in panel.marks):
        return _rows_panel(panel, width)
    x_range, y_range, ratio = _ranges(panel)
    rows = _rows(panel)
    kinds = {row["kind"] for row in rows}
    layers = [layer for kind, make in LAYERS if kind in kinds for layer in make(panel)]
    if layers:
        layers[0]["params"] = [ZOOM]
    names = ", ".join(dict.fromkeys(mark.name for mark in panel.marks if mark.name)) or "no data"
    nice = False if _is_plane(panel) else 5  # round numbers at the ends of the y axis
    x = {"field": "x", "type": "quantitative", "scale": {"domain": x_range, "nice": False, "zero": False}}
    y = {"field": "y", "type": "quantitative", "scale": {"domain": y_range, "nice": nice, "zero": False}}
    return {
        "description": printable(f"{panel.title}: {panel.y_label} against {panel.x_label}, {names}"),
        "title": _title(panel, width),
        "width": width,
        "height": round(width * ratio),
        "data": {"values": rows},
        "transform": [{"filter": "indexof(hidden, datum.name) < 0"}],
        "encoding": {
            "x": x | {"axis": {"grid": _is_plane(panel), "title": printable(panel.x_label)}},
            "y": y | {"axis": {"title": None}},
            "color": _by_mark(panel, colour_of),
        },
        "layer": layers or [EMPTY],
    }


def _rows_panel(panel: Panel, width: int) -> Spec:
    """Return a panel with a row for each name: a dot, ± one standard error, and a thin line for the wider interval."""
    marks = enumerate(panel.marks)
    rows = [_interval(number, mark) for number, mark in marks if isinstance(mark, Row) and _is_known(mark)]
    ends = [row[key] for row in rows for key in ("low", "high", "start", "end")]
    ends += [] if panel.reference is None else [panel.reference]
    domain = _widen((min(ends), max(ends)) if ends else None, 1.1)
    names = [printable(mark.name) for mark in panel.marks]
    room = NAMES if max(map(len, names), default=0) <= SHORT else LONG_NAMES
    axis: Spec = {"grid": False, "title": None, "domain": False, "minExtent": room, "maxExtent": room}
    axis |= {"labelLimit": room - 10, "labelExpr": "datum.label", "labelColor": "var(--ink)", "labelFontSize": 12}
    y_label = f"{panel.y_label}, " if panel.y_label else ""
    return {
        "description": printable(f"{panel.title}: {y_label}{', '.join(names)}"),
        "title": _title(panel, width) | {"dx": -room},
        "width": width + AXIS - room,
        "height": ROW * max(1, len(names)),
        "data": {"values": rows},
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "scale": {"domain": domain, "nice": False, "zero": False},
                "axis": {"grid": True, "title": printable(panel.x_label)},
            },
            "y": {"field": "name", "type": "nominal", "sort": names, "scale": {"domain": names}, "axis": axis},
            "color": _by_mark(panel, colour_of),
            "tooltip": [{"field": "name", "title": "name"}, {"field": "value", "title": printable(panel.title)}],
        },
        "layer": _interval_layers(panel),
    }


def _is_known(mark: Mark) -> bool:
    return bool(mark.points) and mark.points[0].is_finite


def _interval(number: int, mark: Row) -> Spec:
    """Return the data of a row: the value, the ends of ± one standard error, and the ends of the wider interval."""
    point = mark.points[0]
    error, (start, end) = point.stderr or 0.0, mark.span or (point.y, point.y)
    known = {"kind": "row", "mark": number, "name": printable(mark.name), "x": point.y, "n": point.n}
    ends = {"low": point.y - error, "high": point.y + error, "start": start, "end": end}
    return known | ends | {"value": _value_text(point, mark.span)}


def _interval_layers(panel: Panel) -> list[Spec]:
    rule = {"type": "rule", "aria": False, "tooltip": None}
    layers: list[Spec] = [
        {"mark": rule | {"strokeWidth": 1.2}, "encoding": {"x": {"field": "start"}, "x2": {"field": "end"}}},
        {"mark": rule | {"strokeWidth": 4}, "encoding": {"x": {"field": "low"}, "x2": {"field": "high"}}},
        {"mark": {"type": "circle", "size": 90, "opacity": 1, "aria": False}},
    ]
    if panel.reference is None:
        return layers
    line = {"type": "rule", "color": "var(--muted)", "strokeDash": [3, 3], "aria": False}
    reference = {"x": {"datum": panel.reference}, "y": None, "color": None, "tooltip": None}
    return [{"mark": line, "encoding": reference}, *layers]


def _title(panel: Panel, width: int) -> Spec:
    return {"text": printable(panel.title), "subtitle": printable(panel.y_label) or " ", "limit": width + AXIS}


def _value_text(point: Point, span: Range | None) -> str:
    """Return mean, standard error, n and interval as text for a tooltip."""
    error = "" if point.stderr is None else f" ± {point.stderr:.2g} (n = {point.n})"
    wider = "" if span is None else f", 95 % interval {span[0]:.2f} to {span[1]:.2f}"
    return f"{point.y:.4g}{error}{wider}".replace("-", "−")


def _rows(panel: Panel) -> list[Spec]:
    """Return the data of a panel: a row for each point, but one for an arrow. A point in a gap of a line has no y."""
    rows: list[Spec] = []
    for index, mark in enumerate(panel.marks):
        row = {"kind": type(mark).__name__.lower(), "mark": index, "name": printable(mark.name)}
        points = [point for point in mark.points if point.is_finite]
        if isinstance(mark, Arrow):
            if len(points) > 1 and points[0][:2] != points[1][:2]:
                start, end = points[:2]
                angle = -math.degrees(math.atan2(end.y - start.y, end.x - start.x))  # clockwise
                rows.append(row | {"x": end.x, "y": end.y, "x0": start.x, "y0": start.y, "angle": angle})
        elif isinstance(mark, Line):
            known = [point for point in mark.points if math.isfinite(point.x)] if points else []
            rows += [row | (_row(point) if point.is_finite else {"x": point.x, "y": None}) for point in known]
        else:
            rows += [row | _row(point) for point in (points[:1] if isinstance(mark, Label) else points)]
    return rows


def _row(point: Point) -> Spec:
    """Return a row with six digits, which is more than a chart can show."""
    error = {} if point.stderr is None else {"stderr": float(f"{point.stderr:.6g}"), "n": point.n}
    return {"x": float(f"{point.x:.6g}"), "y": float(f"{point.y:.6g}"), **error}


def _is_plane(panel: Panel) -> bool:
    """Return True if x is a measurement, as in a scatter plot, and not time."""
    return panel.square or not any(isinstance(mark, Line) for mark in panel.marks)


def _ranges(panel: Panel) -> tuple[Range, Range, float]:
    """Return the ranges of the axes, and height divided by width. Units of square axes have the same length."""
    margin = 1.1 if _is_plane(panel) else 1.0
    x_range = _widen(panel.x_range, 1.0) if panel.x_range else _widen(x_extent(panel.marks), margin)
    y_range = _widen(panel.y_range, 1.0) if panel.y_range else _widen(y_extent(panel.marks), margin)
    if not panel.square:
        return x_range, y_range, RATIO
    across, up = x_range[1] - x_range[0], y_range[1] - y_range[0]
    ratio = min(max(up / across, 0.4), 1.2)
    return _widen(x_range, up / ratio / across), _widen(y_range, ratio * across / up), ratio


def _widen(span: Range | None, factor: float) -> Range:
    """Return a range that is `factor` times as long, but not shorter. Equal ends are moved apart."""
    low, high = span or (0.0, 1.0)
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # equal, or different by rounding only
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    more = (high - low) * max(0.0, factor - 1) / 2
    return low - more, high + more


def _by_mark(panel: Panel, value: Callable[[Mark], Any]) -> Spec:
    """Return an encoding that gives each mark of a panel its value."""
    scale = {"domain": [*range(len(panel.marks))], "range": [value(mark) for mark in panel.marks]}
    return {"field": "mark", "type": "nominal", "scale": scale, "legend": None}


def _layer(kind: str, mark: Spec, encoding: Spec | None = None, transform: Sequence[Spec] = ()) -> Spec:
    """Return a layer of the rows of one kind of mark."""
    chosen = {"filter": f"datum.kind == '{kind}'"}
    return {
        "transform": [chosen, *transform],
        "mark": {"clip": True, "aria": False, **mark},
        "encoding": encoding or {},
    }


def _region(panel: Panel) -> Iterator[Spec]:
    mark = {"type": "line", "interpolate": "linear-closed", "strokeWidth": 1, "strokeOpacity": 0.8, "fillOpacity": 0.1}
    fill, dashes = _by_mark(panel, colour_of), _by_mark(panel, dashes_of)
    yield _layer("region", mark, {"fill": fill, "strokeDash": dashes, "order": IN_ORDER})


def _band(panel: Panel) -> Iterator[Spec]:
    if any(point.stderr is not None for mark in panel.marks for point in mark.points):
        edges = [
            {"calculate": "isValid(datum.stderr) ? datum.y + datum.stderr : null", "as": "upper"},
            {"calculate": "isValid(datum.stderr) ? datum.y - datum.stderr : null", "as": "y"},
        ]
        yield _layer("line", {"type": "area", "opacity": 0.18}, {"y2": {"field": "upper"}}, edges)


def _line(panel: Panel) -> Iterator[Spec]:
    mark = {"type": "line", "strokeWidth": 1.8, "strokeCap": "round", "strokeJoin": "round"}
    yield _layer("line", mark, {"strokeDash": _by_mark(panel, dashes_of), "order": IN_ORDER})


def _cloud(panel: Panel) -> Iterator[Spec]:
    is_dense = sum(len(mark.points) for mark in panel.marks if isinstance(mark, Cloud)) > MANY
    mark = {"type": "circle", "size": 14 if is_dense else 32, "opacity": 0.45 if is_dense else 0.85}
    yield _layer("cloud", mark, {"tooltip": _coordinates(panel)})


def _arrow(panel: Panel) -> Iterator[Spec]:
    ends = {"x2": {"field": "x0"}, "y2": {"field": "y0"}, "strokeDash": _by_mark(panel, dashes_of)}
    yield _layer("arrow", {"type": "rule", "strokeWidth": 2}, ends)
    head = {"type": "point", "filled": True, "shape": ARROW_HEAD, "size": 400, "opacity": 1}
    angle = {"field": "angle", "type": "quantitative", "scale": None}
    yield _layer("arrow", head, {"angle": angle, "tooltip": _coordinates(panel)})


def _label(panel: Panel) -> Iterator[Spec]:
    mark = {"type": "text", "fontSize": 12}
    halo = {"stroke": "var(--ground)", "strokeWidth": 3, "strokeJoin": "round"}
    yield _layer("label", mark | halo, {"text": {"field": "name"}})
    yield _layer("label", mark, {"text": {"field": "name"}})


def _nearest(panel: Panel) -> Iterator[Spec]:
    """Yield a vertical line at the x that is nearest to the pointer. Its tooltip lists the values of all lines."""
    if _is_plane(panel):
        return
    label = printable(panel.x_label or "x")
    field = re.sub(r"([.\[\]\\'\"])", r"\\\1", label)  # as Vega-Lite reads names of fields
    error = "isValid(datum.stderr) ? ' ± ' + format(datum.stderr, '.2~r') + ' (n = ' + datum.n + ')' : ''"
    readings: list[Spec] = [
        {"filter": "datum.name && isValid(datum.y)"},
        {"calculate": f"replace({NUMBER.format('datum.y')}, '-', '−') + ({error})", "as": "value"},
        {"calculate": "datum.x", "as": label},
        {"pivot": "name", "value": "value", "groupby": [field], "op": "max"},
    ]
    mark = {"type": "rule", "color": "var(--muted)", "tooltip": {"content": "data"}}
    opacity = {"condition": {"param": "nearest", "empty": False, "value": 0.6}, "value": 0}
    encoding = {"x": {"field": field, "type": "quantitative"}, "y": None, "color": None, "opacity": opacity}
    nearest = {"type": "point", "fields": [field], "nearest": True, "on": "pointermove", "clear": "pointerout"}
    yield _layer("line", mark, encoding, readings) | {"params": [{"name": "nearest", "select": nearest}]}


def _coordinates(panel: Panel) -> list[Spec]:
    """Return the tooltip of a dot or an arrow: its name and its coordinates."""
    x, y = printable(panel.x_label or "x"), printable(panel.y_label or "y")
    return [
        {"field": "name", "title": "name"},
        {"field": "x", "title": x, "format": ".4~r"},
        {"field": "y", "title": y, "format": ".4~r"},
    ]


# Later layers are drawn over earlier ones.
LAYERS = (
    ("region", _region),
    ("line", _band),
    ("cloud", _cloud),
    ("line", _line),
    ("arrow", _arrow),
    ("label", _label),
    ("line", _nearest),
)


def _key(legend: Mapping[str, Mark], columns: int) -> Spec:
    """Return a view that has no marks, only the legend."""
    names = [printable(name) for name in legend]

    def by_name(value: Callable[[Mark], Any]) -> Spec:
        scale = {"domain": names, "range": [value(mark) for mark in legend.values()]}
        return {
            "field": "name",
            "type": "nominal",
            "scale": scale,
            "legend": {"orient": "top", "offset": 0, "columns": columns, "values": names},
        }

    return {
        **EMPTY,
        "width": 1,
        "height": 1,
        "view": {"stroke": None},
        "encoding": {
            "stroke": by_name(colour_of),
            "fill": by_name(lambda mark: colour_of(mark) if isinstance(mark, Cloud | Arrow) else "transparent"),
            "strokeDash": by_name(dashes_of),
            "shape": by_name(lambda mark: KEY_SHAPES.get(type(mark), "stroke")),
        },
    }
