"""Figures as data: panels, marks and points. `chart` turns a figure into one Vega-Lite specification."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Range = tuple[float, float]


class Point(NamedTuple):
    """A mean at x with its standard error over n values. If y is NaN, a line has a gap."""

    x: float
    y: float
    stderr: float | None = None  # None: fewer than two values
    n: int = 1

    @property
    def is_finite(self) -> bool:
        """True if the point can be drawn."""
        return math.isfinite(self.x + self.y + (self.stderr or 0.0))


@dataclass(frozen=True)
class Mark:
    """Points that are drawn in one way, with a name for the legend and an index of the palette."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0


class Line(Mark):
    """A line through the points, with a band of ± one standard error."""


class Cloud(Mark):
    """A dot at every point."""


class Arrow(Mark):
    """An arrow from the first point to the second, in a panel with `square` axes."""


class Region(Mark):
    """A filled polygon."""


@dataclass(frozen=True)
class Row(Mark):
    """A dot with a bar of ± one standard error, in a row of its own: x is the number of the row, y the mean.

    A panel has either rows or other marks. The names are on the axis, not in the legend.
    """

    span: Range | None = None  # a thin line, such as a 95 % interval


class Label(Mark):
    """The name, written at the first point. It is not in the legend."""


@dataclass(frozen=True)
class Panel:
    """Marks on one pair of axes."""

    title: str
    marks: tuple[Mark, ...]
    x_label: str = "step"
    y_label: str = ""
    x_range: Range | None = None  # None: the range of the points
    y_range: Range | None = None  # None: the range of the points with their standard errors
    square: bool = False  # a unit has the same length on both axes
    reference: float | None = None  # value of a vertical line behind rows


@dataclass(frozen=True)
class Figure:
    """Panels with one legend and one caption."""

    name: str  # name of the files: lower-case letters, digits and underscores
    title: str
    panels: tuple[Panel, ...]
    explanation: str = ""  # a few sentences that explain how to read the figure
    notes: tuple[str, ...] = ()  # what was measured, and on how many runs

    def legend(self) -> dict[str, Mark]:
        """Return the first mark of every name, without labels and rows."""
        first: dict[str, Mark] = {}
        for mark in (mark for panel in self.panels for mark in panel.marks):
            if mark.points and mark.name and not isinstance(mark, Label | Row):
                first.setdefault(mark.name, mark)
        return first

    def csv(self) -> str:
        """Return all points as CSV. The standard error of a single value is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["panel", "mark", "name", "x", "y", "stderr", "n"])
        for panel in self.panels:
            for mark in panel.marks:
                writer.writerows([panel.title, type(mark).__name__.lower(), mark.name, *point] for point in mark.points)
        return out.getvalue()


def y_extent(marks: Iterable[Mark]) -> Range | None:
    """Return the smallest and the largest y of the marks, with standard errors; None if there are no points."""
    points = [point for mark in marks for point in mark.points if point.is_finite]
    ends = [point.y + side * (point.stderr or 0.0) for point in points for side in (-1, 1)]
    return (min(ends), max(ends)) if ends else None


def x_extent(marks: Iterable[Mark]) -> Range | None:
    """Return the smallest and the largest x of the marks; None if there are no points."""
    xs = [point.x for mark in marks for point in mark.points if point.is_finite]
    return (min(xs), max(xs)) if xs else None
