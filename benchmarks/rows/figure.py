"""A line of the table, and the table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = ("work", "measured", "floor", "DomainBed / the authors", "must reach", "reached")


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    work: str
    unit: str = ""
    measured: float | None = None
    low: float | None = None  # a quarter of the repeats was below
    high: float | None = None
    floor: float | None = None
    reference: float | None = None
    whose: str = ""  # the reference
    target: float | None = None  # at most this
    extrapolated: int | None = None  # from so many steps
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether it is as good as it must be; None where nothing was asked, or measured."""
        return None if self.target is None or self.measured is None else self.measured <= self.target


class MeasurementError(Exception):
    """Something that could not be measured, and why."""


def reason(error: BaseException) -> str:
    """An error in a line."""
    said = str(error).strip().splitlines()
    if isinstance(error, MeasurementError):
        return said[0]
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def cells(figure: Figure) -> tuple[str, ...]:
    """A line of the table."""
    if figure.failed:
        return (figure.work, f"failed: {figure.failed}", "", "", "", "")
    spread = "" if figure.low is None else f" ({shown(figure.low)} – {shown(figure.high)})"
    spread += f", EXTRAPOLATED from {figure.extrapolated:,} steps" if figure.extrapolated else ""
    reference = f"{shown(figure.reference, figure.unit)}, {figure.whose}" if figure.reference else "–"
    return (
        figure.work,
        f"{shown(figure.measured, figure.unit)}{spread}",
        shown(figure.floor, figure.unit),
        reference,
        "–" if figure.target is None else f"≤ {shown(figure.target, figure.unit)}",
        {None: "–", True: "yes", False: "no"}[figure.reached],
    )


def shown(value: float | None, unit: str = "") -> str:
    """Three digits and the unit."""
    if value is None:
        return "–"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def table(figures: Sequence[Figure]) -> list[str]:
    """In Markdown, what there is to say of a line below it."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += ["| " + " | ".join(cells(figure)).replace("\n", " ") + " |" for figure in figures]
    notes = [f"- {figure.work}: {figure.note}." for figure in figures if figure.note]
    return [*lines, "", *notes]


def floors_table(floors: dict[str, dict[str, float]]) -> list[str]:
    """What was measured by hand, in Markdown."""
    lines = ["| by hand | |", "|---|---|"]
    for name, numbers in floors.items():
        lines.append(f"| {name} | {', '.join(f'{key} {value:.3g}' for key, value in numbers.items()) or 'failed'} |")
    return lines
