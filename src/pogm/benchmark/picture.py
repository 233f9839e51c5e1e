"""The README's picture: the mean angle beside the test accuracy."""

from collections.abc import Iterable
from pathlib import Path

from pogm.benchmark import charts
from pogm.benchmark.records import Run
from pogm.benchmark.series import ACCURACY, ANGLE, angles, curves
from pogm.core.errors import UsageError
from pogm.core.files import write_whole


def write_picture(runs: Iterable[Run], path: Path | str, dataset: str | None = None) -> Path:
    """A standalone SVG, twice as wide as high: the mean angle beside the test accuracy, for one dataset."""
    runs = list(runs)
    if not runs:
        raise UsageError("Expected runs to draw; found none. Pass a folder that holds finished runs.")
    dataset = dataset or runs[0].dataset
    angle, curve = angles(runs, dataset), curves(runs, dataset)
    panels = [
        (angle, "Agreement of the update with its source domains", ANGLE),
        (curve, "Accuracy on the unseen domain", ACCURACY),
    ]
    drawn = [
        charts.line_chart(lines, title=name, y_label=unit, width=432, height=408, at=(24 + 480 * column, 56))
        for column, (lines, name, unit) in enumerate(panels)
    ]
    title = f"{dataset}: agreement of the update with its source domains, and accuracy on the unseen domain"
    drawing = charts.standalone(drawn, curve or angle, title=title, width=960, height=480)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, drawing.encode())
    return path
