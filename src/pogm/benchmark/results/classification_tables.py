"""Tables of the metrics of one classifier: by site, by class, confusion matrix and calibration."""

from collections.abc import Mapping

from pogm.benchmark.results.classification import ClassificationMetrics, TemperatureScaling
from pogm.benchmark.results.table import Column, Row, Table

INTERVALS = "Intervals of 95 % from the number of {0} (Wilson); {0} of one site are taken to be independent."


def metrics_table(
    sites: Mapping[str, ClassificationMetrics], title: str = "Metrics by site", samples: str = "images"
) -> Table:
    """Return one row for each site: number of images, accuracies with intervals, F1, AUROC and calibration.

    Args:
        sites: Metrics by site.
        title: Title of the table.
        samples: What a sample is called: "images" or "samples".
    """
    columns = (
        Column("images", samples, kind="number"),
        Column("accuracy", "accuracy (%)", kind="text"),
        Column("balanced_accuracy", "balanced accuracy (%)", kind="text"),
        Column("macro_f1", "macro F1", kind="number", digits=".3f", missing="-"),
        Column("auroc", "AUROC", kind="number", digits=".3f", missing="-"),
        Column("ece", "ECE", kind="number", digits=".3f"),
        Column("nll", "NLL", kind="number", digits=".3f"),
    )
    rows = tuple(
        Row((m.n, m.accuracy.text(), m.balanced_accuracy.text(), m.macro_f1, m.auroc, m.ece, m.nll), key=name)
        for name, m in sites.items()
    )
    notes = [
        INTERVALS.format(samples),
        f"Balanced accuracy and macro F1 are means over the classes that have {samples}; AUROC is the mean over "
        "classes of one class against the rest; ECE is the expected calibration error; NLL is the negative "
        "log-likelihood.",
    ]
    notes += [f"{name}: no {samples} of {', '.join(m.missing)}." for name, m in sites.items() if m.missing]
    notes += [
        f"{name}: AUROC without {', '.join(m.without_auroc)}, for which it is undefined."
        for name, m in sites.items()
        if m.without_auroc
    ]
    return Table(title, columns, rows, footnotes=tuple(notes), row_key="site")


def recall_table(metrics: ClassificationMetrics, samples: str = "images") -> Table:
    """Return one row for each class: number of images, recall with interval, and the most frequent wrong class."""
    columns = (
        Column("images", samples, kind="number"),
        Column("recall", "recall (%)", kind="text"),
        Column("most_confused_with", "most often taken for", kind="text"),
    )
    rows = []
    for i, (name, recall) in enumerate(zip(metrics.classes, metrics.recalls, strict=True)):
        wrong = [(0 if j == i else count) for j, count in enumerate(metrics.confusion[i])]
        most = max(wrong)
        confused = f"{metrics.classes[wrong.index(most)]} ({most})" if most else "-"
        rows.append(Row((recall.n, recall.text(), confused), key=name))
    return Table("Recall by class", columns, tuple(rows), footnotes=(INTERVALS.format(samples),), row_key="class")


def confusion_table(metrics: ClassificationMetrics) -> Table:
    """Return the number of images by true class (row) and predicted class (column)."""
    columns = tuple(Column(name, kind="number") for name in metrics.classes)
    named = zip(metrics.classes, metrics.confusion, strict=True)
    rows = tuple(Row(tuple(counts), key=name) for name, counts in named)
    note = "Rows are true classes, columns are predicted classes."
    return Table("Confusion matrix", columns, rows, footnotes=(note,), row_key="class")


def calibration_table(scalings: Mapping[str, TemperatureScaling], note: str) -> Table:
    """Return one row for each site: calibration error before and after scaling, and the temperature.

    Args:
        scalings: Results by site.
        note: Sentence that says where the temperatures come from.
    """
    columns = (
        Column("before", "ECE before", kind="number", digits=".3f"),
        Column("after", "ECE after", kind="number", digits=".3f"),
        Column("temperature", kind="number", digits=".2f"),
    )
    rows = tuple(Row((s.before, s.after, s.temperature), key=name) for name, s in scalings.items())
    title = "Calibration before and after temperature scaling"
    return Table(title, columns, rows, footnotes=(note,), row_key="site")
