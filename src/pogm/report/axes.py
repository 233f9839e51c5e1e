"""A pair of axes: which values they span, where these lie on the page, and the round numbers written beside them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pogm.report.figure import Mark, Panel, Point

Range = tuple[float, float]
HEIGHT, TOP, RIGHT, BOTTOM = 250, 44, 12, 38  # of a panel, and around its frame, in pixels


@dataclass(frozen=True)
class Axes:
    """From values to pixels, y upwards."""

    x_range: Range
    y_range: Range
    x_ticks: list[float]
    y_ticks: list[float]
    left: int  # of the frame, in pixels
    width: int
    height: int
    top: int = TOP

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + (high - value) / (high - low) * self.height


def axes_of(panel: Panel, width: int, height: int | None) -> Axes:
    """The axes of a panel; left to itself, a square one gets the height its values need."""
    x_range, y_range = _spans(panel)
    x_ticks, y_ticks = nice_ticks(*x_range), nice_ticks(*y_range)
    left = max(40, 12 + math.ceil(6.3 * max(len(tick_text(tick)) for tick in y_ticks)))
    inner, tall = width - left - RIGHT, (height or HEIGHT) - TOP - BOTTOM
    if panel.square:
        shape = (y_range[1] - y_range[0]) / (x_range[1] - x_range[0])
        tall = tall if height else round(inner * min(max(shape, 0.4), 1.2))
        unit = max((x_range[1] - x_range[0]) / inner, (y_range[1] - y_range[0]) / tall)
        x_range, y_range = _around(x_range, unit * inner), _around(y_range, unit * tall)
        x_ticks, y_ticks = _within(x_range), _within(y_range)
    else:  # the ends are round numbers
        x_range, y_range = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])
    return Axes(x_range, y_range, x_ticks, y_ticks, left, inner, tall)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) that span low to high."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # equal, or different by rounding only
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.15g}") for i in range(first, last + 1)]


def tick_text(tick: float) -> str:
    """A round number as one would write it."""
    return (f"{tick / 1000:g}k" if abs(tick) >= 10000 else f"{tick:g}").replace("e-0", "e-").replace("-", "−")


def extent(marks: Iterable[Mark]) -> Range | None:
    """The lowest and highest value with its band; None where there is none."""
    points = _drawn(marks)
    return (min(p.y - p.spread for p in points), max(p.y + p.spread for p in points)) if points else None


def _drawn(marks: Iterable[Mark]) -> list[Point]:
    return [point for mark in marks for point in mark.points if math.isfinite(point.x + point.y + point.spread)]


def _spans(panel: Panel) -> tuple[Range, Range]:
    """Return the given range, or the range of the marks, with a margin at ends that are not rounded."""
    xs = [point.x for point in _drawn(panel.marks)] or [0.0, 1.0]
    x_range, y_range = (min(xs), max(xs)), extent(panel.marks) or (0.0, 1.0)
    if panel.square:
        x_range, y_range = (_around(span, 1.1 * (span[1] - span[0]) or 1.0) for span in (x_range, y_range))
    return panel.x_range or x_range, panel.y_range or y_range


def _around(span: Range, length: float) -> Range:
    middle = (span[0] + span[1]) / 2
    return middle - length / 2, middle + length / 2


def _within(span: Range) -> list[float]:
    return [tick for tick in nice_ticks(*span) if span[0] <= tick <= span[1]]
