"""A measurement as a line of the table, and the table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = ("work", "measured", "handwritten", "DomainBed / the authors", "target", "met")


@dataclass(frozen=True)
class Figure:
    """One measurement, which is one line of the table."""

    work: str
    unit: str = ""
    measured: float | None = None
    low: float | None = None  # first quartile of the repeats
    high: float | None = None
    floor: float | None = None
    reference: float | None = None
    whose: str = ""  # source of the reference
    target: float | None = None  # largest accepted value
    extrapolated: int | None = None  # number of measured steps, if the value is extrapolated
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def reached(self) -> bool | None:
        """True if the value meets the target; None if there is no target or no value."""
        return None if self.target is None or self.measured is None else self.measured <= self.target


class MeasurementError(Exception):
    """A measurement failed; the message is the reason."""


def reason(error: BaseException) -> str:
    """Return an error as one line of text."""
    said = str(error).strip().splitlines()
    if isinstance(error, MeasurementError):
        return said[0]
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def cells(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a line of the table."""
    if figure.failed:
        return (figure.work, f"failed: {figure.failed}", "", "", "", "")
    spread = "" if figure.low is None else f" ({format_value(figure.low)} – {format_value(figure.high)})"
    spread += f", EXTRAPOLATED from {figure.extrapolated:,} steps" if figure.extrapolated else ""
    reference = f"{format_value(figure.reference, figure.unit)}, {figure.whose}" if figure.reference else "–"
    return (
        figure.work,
        f"{format_value(figure.measured, figure.unit)}{spread}",
        format_value(figure.floor, figure.unit),
        reference,
        "–" if figure.target is None else f"≤ {format_value(figure.target, figure.unit)}",
        {None: "–", True: "yes", False: "no"}[figure.reached],
    )


def format_value(value: float | None, unit: str = "") -> str:
    """Return a number as text, with three digits and the unit."""
    if value is None:
        return "–"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the table in Markdown, followed by the notes."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += ["| " + " | ".join(cells(figure)).replace("\n", " ") + " |" for figure in figures]
    notes = [f"- {figure.work}: {figure.note}." for figure in figures if figure.note]
    return [*lines, "", *notes]


def floors_table(floors: dict[str, dict[str, float]]) -> list[str]:
    """Return the measurements of the handwritten loops as a Markdown table."""
    lines = ["| handwritten version | |", "|---|---|"]
    for name, numbers in floors.items():
        lines.append(f"| {name} | {', '.join(f'{key} {value:.3g}' for key, value in numbers.items()) or 'failed'} |")
    return lines
