"""The README's picture: the mean angle beside the test accuracy."""

from collections.abc import Iterable
from pathlib import Path

from pogm._system.errors import UsageError
from pogm._system.files import write_atomic
from pogm.benchmark.results.records import Run
from pogm.report.charts import picture
from pogm.report.figure import Figure, Panel
from pogm.report.series import ACCURACY, ANGLE, angles, curves


def write_picture(runs: Iterable[Run], path: Path | str, dataset: str | None = None) -> Path:
    """A standalone SVG, twice as wide as high: the mean angle beside the test accuracy, for one dataset."""
    runs = list(runs)
    if not runs:
        raise UsageError("Expected runs to draw; found none. Pass a folder that holds finished runs.")
    dataset = dataset or runs[0].dataset
    figure = Figure(
        "picture",
        f"{dataset}: agreement of the update with its source domains, and accuracy on the unseen domain",
        (
            Panel("Agreement of the update with its source domains", (*angles(runs, dataset),), y_label=ANGLE),
            Panel("Accuracy on the unseen domain", (*curves(runs, dataset),), y_label=ACCURACY),
        ),
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture(figure, width=960, height=480).encode())
    return path
