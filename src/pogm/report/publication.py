"""A figure for a paper: PDF and SVG, as wide as a column or the page, the same bytes every time."""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pogm._system.errors import UsageError, unknown_name_error
from pogm._system.files import write_atomic
from pogm.benchmark.results.records import printable
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region
from pogm.report.style import DASHES, LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

COLUMN, PAGE = 3.4, 7.1  # inches: one column of a two-column page, and both
LEFT, RIGHT, BELOW = 0.46, 0.1, 0.38  # inches around a panel, for what is written there
LINE, GAP = 0.15, 0.08  # of titles and legend, and between them
IN_A_ROW = 4
INK, FAINT = "#1b1f24", "#d5d8dc"
STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: the fonts travel with the file, and publishers accept it
    "svg.fonttype": "path",
    "svg.hashsalt": "pogm",
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # both come with matplotlib; the first looks like Times
    "mathtext.fontset": "stix",
    "mathtext.default": "regular",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 8.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#6b7178",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlepad": 5.0,
    "axes.labelpad": 2.5,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 4),
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "xtick.color": "#6b7178",
    "ytick.color": "#6b7178",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "lines.linewidth": 1.2,
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.5,
}
METADATA: dict[str, dict[str, Any]] = {  # no dates
    "pdf": {"Creator": "pogm", "CreationDate": None},
    "svg": {"Creator": "pogm", "Date": None},
    "png": {},
}


def write_figure(figure: Figure, folder: Path | str, formats: Sequence[str] = ("pdf", "svg")) -> list[Path]:
    """Write the figure in every format, and its numbers beside it: ``<name>.pdf``, ``<name>.svg``, ``<name>.csv``."""
    for name in formats:
        if name not in METADATA:
            raise unknown_name_error("a format of figures", name, METADATA)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {name: _encoded(figure, name) for name in formats} | {"csv": figure.csv().encode()}
    paths = [folder / f"{figure.name}.{name}" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def _encoded(figure: Figure, name: str) -> bytes:
    out = io.BytesIO()
    with _style():
        drawing(figure).savefig(out, format=name, dpi=300, metadata={"Title": figure.title} | METADATA[name])
    return out.getvalue()


def drawing(figure: Figure) -> "Drawing":
    """The figure as matplotlib's, with one pair of axes per panel, in their order."""
    with _style():
        from matplotlib.figure import Figure as Drawing

        width, columns = _grid(len(figure.panels))
        cell = width / columns
        inner = cell - LEFT - RIGHT
        titled = [(panel, _title(figure, number, cell)) for number, panel in enumerate(figure.panels)]
        rows = [titled[start : start + columns] for start in range(0, len(titled), columns)]
        lines = [max(len(title) for _, title in row) for row in rows]
        tall = [max(_shape(panel) for panel, _ in row) * inner for row in rows]
        keys = _keys(figure)
        in_legend = math.ceil(sum(0.42 + 0.055 * len(name) for name in keys) / width)  # rows, about

        top = height = LINE * (in_legend + sum(lines)) + sum(tall) + BELOW * len(rows) + GAP
        made = Drawing(figsize=(width, height))
        if keys:
            _legend(made, keys, in_legend)
        top -= LINE * in_legend + GAP
        for row, count, high in zip(rows, lines, tall, strict=True):
            top -= LINE * count + high
            for column, (panel, title) in enumerate(row):
                place = (column * cell + LEFT) / width, top / height, inner / width, high / height
                axes = made.add_axes(place, anchor="N")
                axes.set_title("\n".join(map(_text, title)), linespacing=1.0)
                _draw(axes, panel)
                if column and row[column - 1][0].y_label == panel.y_label:
                    axes.set_ylabel("")  # said once a row
            top -= BELOW
        return made


@contextmanager
def _style() -> Iterator[None]:
    """Our style instead of the reader's, which is back afterwards; names in scripts that no font has are boxes."""
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(
            "Expected matplotlib, which draws figures for papers; found that it is not installed. "
            "Install it: pip install 'pogm[figures]'"
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _grid(panels: int) -> tuple[float, int]:
    """Width in inches, and columns: up to two panels share a column of the page, more take its whole width."""
    rows = math.ceil(panels / IN_A_ROW)
    return (COLUMN if panels <= 2 else PAGE), math.ceil(panels / max(1, rows)) or 1


def _title(figure: Figure, number: int, width: float) -> list[str]:
    """A panel's letter, if there are several, and its title, in lines of so many inches."""
    letter = f"({chr(ord('a') + number)}) " if len(figure.panels) > 1 else ""
    return textwrap.wrap(letter + printable(figure.panels[number].title), int(width / 0.055))


def _shape(panel: Panel) -> float:
    """Height over width."""
    if not panel.square:
        return 0.65
    (left, right), (low, high) = _limits(panel)
    return min(max((high - low) / (right - left), 0.4), 1.3)


def _limits(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the limits of the axes: the given ranges, or those of the points and their bands, with a margin."""
    points = [point for mark in panel.marks for point in mark.points if math.isfinite(point.x + point.y)]
    xs = [point.x for point in points]
    ys = [y for point in points for y in (point.y - point.spread, point.y + point.spread)]
    return panel.x_range or _around(xs), panel.y_range or _around(ys)


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.1 * abs(low) or 1.0
    return low - room, high + room


def _draw(axes: "Axes", panel: Panel) -> None:
    axes.set_xlabel(_text(panel.x_label))
    axes.set_ylabel(_text(panel.y_label))
    for kind in (Region, Cloud, Line, Arrow, Label):  # what covers little is drawn over what covers much
        for mark in panel.marks:
            if type(mark) is kind and mark.points:
                DRAW[kind](axes, mark)
    horizontal, vertical = _limits(panel)
    axes.set_xlim(*horizontal)
    axes.set_ylim(*vertical)
    axes.locator_params(nbins=5, min_n_ticks=3)
    if panel.square:
        axes.set_aspect("equal", adjustable="box")


def _region(axes: "Axes", mark: Mark) -> None:
    xs, ys = [p.x for p in mark.points], [p.y for p in mark.points]
    axes.fill(xs, ys, facecolor=(_colour(mark), 0.1), edgecolor=(_colour(mark), 0.8), lw=0.8, ls=_dashes(mark))


def _cloud(axes: "Axes", mark: Mark) -> None:
    many = len(mark.points) > 100
    xs, ys = [p.x for p in mark.points], [p.y for p in mark.points]
    size, shade = (1.8, 0.35) if many else (3.0, 0.9)
    axes.plot(xs, ys, "o", ms=size, mew=0, color=_colour(mark), alpha=shade)


def _line(axes: "Axes", mark: Mark) -> None:
    colour, dashes = _colour(mark), _dashes(mark)
    xs, ys = [p.x for p in mark.points], [p.y for p in mark.points]
    if any(p.spread for p in mark.points):
        low, high = [p.y - p.spread for p in mark.points], [p.y + p.spread for p in mark.points]
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(xs, ys, color=colour, ls=dashes)
    alone = list(_alone(mark.points))
    if alone:  # a line of one point has no length
        axes.plot([p.x for p in alone], [p.y for p in alone], "o", ms=2.0, mew=0, color=colour)


def _alone(points: Sequence[Point]) -> Iterator[Point]:
    """Points between gaps."""
    gaps = [True, *(math.isnan(point.y) for point in points), True]
    for place, point in enumerate(points, start=1):
        if not gaps[place] and gaps[place - 1] and gaps[place + 1]:
            yield point


def _arrow(axes: "Axes", mark: Mark) -> None:
    start, end = mark.points[:2]
    shape = {"arrowstyle": "-|>,head_length=0.5,head_width=0.22", "color": _colour(mark), "ls": _dashes(mark)}
    fit = {"lw": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9, "capstyle": "butt", "joinstyle": "miter"}
    axes.annotate("", (end.x, end.y), (start.x, start.y), arrowprops=shape | fit)


def _label(axes: "Axes", mark: Mark) -> None:
    from matplotlib.patheffects import withStroke

    (point,) = mark.points
    text = axes.text(point.x, point.y, _text(mark.name), color=_colour(mark), ha="center", va="center")
    text.set_path_effects([withStroke(linewidth=1.8, foreground="white")])


DRAW = {Region: _region, Cloud: _cloud, Line: _line, Arrow: _arrow, Label: _label}


def _keys(figure: Figure) -> dict[str, Any]:
    """Return the entries of the legend: every name of all panels once, in the order of the palette."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: dict[str, Any] = {}
    marks = [mark for panel in figure.panels for mark in panel.marks if mark.points and not isinstance(mark, Label)]
    for mark in sorted(marks, key=lambda mark: mark.colour):
        colour, dashes = _colour(mark), _dashes(mark)
        if isinstance(mark, Region):
            key: Any = Patch(facecolor=(colour, 0.1), edgecolor=(colour, 0.8), lw=0.8, ls=dashes)
        elif isinstance(mark, Cloud):
            key = Line2D([], [], ls="none", marker="o", ms=3, mew=0, color=colour)
        else:
            key = Line2D([], [], color=colour, ls=dashes)
        keys.setdefault(mark.name, key)
    return keys


def _legend(made: "Drawing", keys: dict[str, Any], rows: int) -> None:
    columns = math.ceil(len(keys) / rows)
    names = [name for column in range(columns) for name in list(keys)[column::columns]]  # to be read row by row
    handles = [keys[name] for name in names]
    made.legend(handles, list(map(_text, names)), loc="upper center", ncols=columns, borderaxespad=0.2, borderpad=0)


def _colour(mark: Mark) -> str:
    return LIGHT[mark.colour % len(LIGHT)]


def _dashes(mark: Mark) -> Any:
    dash = DASHES[mark.colour // len(LIGHT) % len(DASHES)]
    return "solid" if dash == "none" else (0, [float(length) / 1.5 for length in dash.split()])


LOWERED, RAISED = "₀₁₂₃₄₅₆₇₈₉ᵢⱼ", "⁺⁻²³"  # which the fonts of the text have not, or not alike
AS_TEXT = str.maketrans(LOWERED + RAISED, "0123456789ij+-23")


def _text(name: object) -> str:
    """A name as matplotlib prints it, letter for letter: a dollar is no mathematics, an index is."""
    plain = printable(name).replace("$", r"\$")
    plain = re.sub(f"[{LOWERED}]+", lambda found: f"$_{{{found[0].translate(AS_TEXT)}}}$", plain)
    return re.sub(f"[{RAISED}]+", lambda found: f"$^{{{found[0].translate(AS_TEXT)}}}$", plain)
