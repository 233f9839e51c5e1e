"""A figure as data: what is drawn, not how. Pages and papers draw it, each in their way."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Point(NamedTuple):
    """A mean at x with its standard error over n values; NaN leaves a gap in a line."""

    x: float
    y: float
    spread: float = 0.0
    n: int = 1


@dataclass(frozen=True)
class Mark:
    """Something drawn at points, with a name for the legend and a place in the palette."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0


class Line(Mark):
    """A line through its points, with a band of ± one standard error."""


class Cloud(Mark):
    """Dots."""


class Arrow(Mark):
    """From its first point to its second."""


class Region(Mark):
    """A filled outline, such as a hull or a ball."""


class Label(Mark):
    """Its name, written at its one point; not in the legend."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    marks: tuple[Mark, ...]
    x_label: str = "step"
    y_label: str = ""
    x_range: tuple[float, float] | None = None  # None: what the marks span
    y_range: tuple[float, float] | None = None
    square: bool = False  # one unit is as long on both axes


@dataclass(frozen=True)
class Figure:
    """Panels that share a legend and a caption."""

    name: str  # of its files: small letters, digits and underscores
    title: str
    panels: tuple[Panel, ...]
    reading: str = ""  # how to read it, in a few sentences
    notes: tuple[str, ...] = ()  # what was measured, on how many runs, by which command

    def rows(self) -> Iterator[tuple[str, str, str, Point]]:
        """Every number of it: panel, kind of mark, its name, the point."""
        for panel in self.panels:
            for mark in panel.marks:
                for point in mark.points:
                    yield panel.title, type(mark).__name__.lower(), mark.name, point

    def csv(self) -> str:
        """Every number of it, for those who would draw it otherwise."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["panel", "mark", "name", "x", "y", "stderr", "n"])
        writer.writerows([panel, kind, name, *point] for panel, kind, name, point in self.rows())
        return out.getvalue()
