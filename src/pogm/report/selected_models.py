"""Metrics and confusion matrices of the selected models, as parts of a page."""

from collections.abc import Sequence

import numpy as np

from pogm.benchmark.results.model_metrics import Confusion, confusions, selected_metrics_table
from pogm.benchmark.results.records import Run
from pogm.report.page import Exhibit, Fold, Part, listing

CONFUSIONS = (
    "Number of test samples by true class (row) and predicted class (column), summed over trials. The stronger the "
    "colour of a cell, the larger its share of the row."
)
MOST_CLASSES = 20  # of a confusion matrix that is shown
MOST_PAIRS = 5  # of confused classes that are shown instead


def selected_models(runs: Sequence[Run], dataset: str) -> list[Exhibit]:
    """Return the metrics and the confusion matrices of the selected models, if the runs have them."""
    table = selected_metrics_table(runs, dataset)
    if table is None:
        return []
    found = confusions(runs, dataset)
    title = "Further metrics of the selected models, and test samples"
    if not found:  # a regression
        return [Fold(title, (table,))]
    if len(found[0].classes) > MOST_CLASSES:
        head = ("Algorithm", "Held out", "True class", "Predicted class", "Images", "Share of the true class, %")
        rows = [row for one in found for row in _most_confused(one)]
        return [Fold(title, (table,)), listing(head, rows, "Most frequent confusions")]
    matrices = [(f"{one.label}, held out: {one.domain}", one.classes, _shaded_rows(one)) for one in found]
    summary = "Confusion matrices of the selected models"
    return [Fold(title, (table,)), Part("confusions", {"summary": summary, "text": CONFUSIONS, "matrices": matrices})]


def _shaded_rows(found: Confusion) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the rows of a confusion matrix: each count, and its share of the row in percent."""
    shares = 100 * found.counts / found.counts.sum(1, keepdims=True).clip(1)
    pairs = zip(found.counts.tolist(), shares.round().astype(int).tolist(), strict=True)
    return [(name, list(zip(*pair, strict=True))) for name, pair in zip(found.classes, pairs, strict=True)]


def _most_confused(found: Confusion) -> list[tuple[object, ...]]:
    """Return the largest counts of a confusion matrix beside its diagonal."""
    wrong = found.counts - np.diag(found.counts.diagonal())
    cells = [np.unravel_index(cell, wrong.shape) for cell in np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]]
    totals = found.counts.sum(1)
    return [
        (
            found.label,
            found.domain,
            found.classes[i],
            found.classes[j],
            wrong[i, j],
            f"{100 * wrong[i, j] / totals[i]:.1f}",
        )
        for i, j in cells
        if wrong[i, j]
    ]
