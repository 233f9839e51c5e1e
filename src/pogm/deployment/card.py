"""Model card: what a model is, how it was trained and how well it works, as HTML and Markdown, without paths."""

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pogm._system.files import write_atomic
from pogm._system.terminal import print_line
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.classification import ClassificationMetrics, classification_metrics, softmax
from pogm.benchmark.results.classification_tables import confusion_table, metrics_table, recall_table
from pogm.benchmark.results.combined import COMBINATION
from pogm.benchmark.results.regression import RegressionMetrics, regression_table
from pogm.benchmark.results.table import Column, Row, Table
from pogm.benchmark.runs.selected_model import RULE
from pogm.data.datasets.array_file import ArrayFile
from pogm.deployment.forecast import FEW_SITES, Forecast, SiteResult
from pogm.report.draw import MissingPackageError
from pogm.report.page import Section, image, render, write_page

SiteMetrics = ClassificationMetrics | RegressionMetrics

HARDEST = 24  # images of the contact sheet
COLUMNS = 8  # of the contact sheet
TILE, TEXT = 112, 26  # pixels of an image and of the text below it
LETTERS = 19  # of a class that fit below an image
HARDEST_FILE = "hardest_images.png"


def write_card(
    folder: Path,
    description: Mapping[str, Any],
    sites: Mapping[str, SiteMetrics],
    results: Sequence[SiteResult],
    trial: Trial,
    data: Path | None,
) -> None:
    """Write ``card.md``, ``card.html`` and the contact sheet of the hardest images into the folder of a model.

    Args:
        folder: Folder of the model.
        description: Contents of model.json.
        sites: Metrics at each site while it was held out.
        results: Predictions at each site while it was held out.
        trial: Trial of the model.
        data: Data folder.
    """
    pictures = {}
    if description["stored_size"]:
        write_atomic(folder / HARDEST_FILE, contact_sheet(results, trial, description["classes"], data))
        pictures["Hardest images"] = (image((folder / HARDEST_FILE).read_bytes(), HARDEST_CAPTION),)
    sections = card_sections(description, sites, results)
    write_atomic(folder / "card.md", _markdown(description, sections).encode())
    try:
        pages = [Section(title, (*tables, *pictures.get(title, ())), text) for title, text, tables in sections]
        write_page(folder / "card.html", render(_title(description), pages, facts=_facts(description)))
    except MissingPackageError as error:
        print_line(f"pogm: The card was not written as HTML, only as card.md. {error}", file=sys.stderr)


UNSCALED = "ECE and NLL are those of the probabilities before temperature scaling."
HARDEST_TEXT = (
    "Images with the lowest probability of their true class, while their site was held out. Wrong labels are often "
    "among them."
)
HARDEST_CAPTION = "Below each image: true class, and the class that was predicted."


def card_sections(
    description: Mapping[str, Any], sites: Mapping[str, SiteMetrics], results: Sequence[SiteResult]
) -> list[tuple[str, str, list[Table]]]:
    """Return the sections of a card: title, paragraphs and tables. A regression has no calibration."""
    found, task = description["forecast"], description.get("task", "classification")
    forecast = Forecast(tuple(found["accuracies"]), found["mean"], found["low"], found["high"], task)
    sections = [
        ("Task", _task(description), []),
        (
            f"{'Accuracy' if task == 'classification' else 'R²'} at a new site",
            forecast.text(),
            [_compared(description)] if len(description["compared"]) > 1 else [],
        ),
        (
            "Results by site",
            "Each site was held out once: the model of its row was trained on the other sites and saw no "
            f"{_samples(description)} of it.",
            _site_tables(sites, results, description["classes"], _samples(description)),
        ),
    ]
    if task == "classification":
        sections.append(("Calibration", _calibration(description), []))
    if description["stored_size"]:
        sections.append(("Hardest images", HARDEST_TEXT, []))
    return [*sections, ("Limitations", _limitations(description), []), ("Load the model", _usage(description), [])]


def _site_tables(
    sites: Mapping[str, SiteMetrics], results: Sequence[SiteResult], classes: Sequence[str], samples: str
) -> list[Table]:
    numbers = {name: found for name, found in sites.items() if isinstance(found, RegressionMetrics)}
    if numbers:
        return [regression_table(numbers)]
    pooled = classification_metrics(
        softmax(torch.cat([result.logits for result in results]).numpy()),
        torch.cat([result.labels for result in results]).numpy(),
        classes,
    )
    found = {name: metrics for name, metrics in sites.items() if isinstance(metrics, ClassificationMetrics)}
    table = metrics_table(found, samples=samples)
    table = replace(table, footnotes=(*table.footnotes, UNSCALED))
    return [table, recall_table(pooled, samples=samples), confusion_table(pooled)]


def _title(description: Mapping[str, Any]) -> str:
    return f"Model card: {description['dataset']}"


def _facts(description: Mapping[str, Any]) -> dict[str, str]:
    provenance = description["provenance"]
    return {
        "Algorithm": description["algorithm"],
        "Network": description["network"],
        "Classes": ", ".join(description["classes"]),
        "Training sites": ", ".join(description["domains"]),
        "Held-out sites": ", ".join(description["held_out"]),
        **_selected(description),
        "Versions": f"pogm {provenance['pogm']}, torch {provenance['torch']}",
    }


def _selected(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the selected step of the model, or those of the runs that it averages."""
    selection, average = description["selection"], description.get(COMBINATION)
    if not average:
        planned = description.get("soup", 1)
        runs = {"Averaged runs": f"none; the time limit left one of {planned}"} if planned > 1 else {}
        return runs | {"Selected step": f"{selection['step']}, by {selection['rule']}"}
    steps = ", ".join(str(member["step"]) for member in average["members"] if member["kept"])
    kept, considered, planned = average["kept"], average["considered"], description["soup"]
    reasons = {"the time limit": planned - considered, "the validation accuracy": considered - kept}
    left_out = "".join(f"; {reason} left out {count}" for reason, count in reasons.items() if count)
    return {"Averaged runs": f"{kept} of {planned}{left_out}", "Selected steps": f"{steps}, by {RULE}"}


def _task(description: Mapping[str, Any]) -> str:
    classes = description["classes"]
    into = f"into {len(classes)} classes: {', '.join(classes)}"
    if description["stored_size"]:
        channels, height, width = description["input_shape"]
        task = f"Classification of images {into}. Images are resized to {height} × {width} pixels with {channels} "
        task += "channels."
    else:
        shape = " × ".join(map(str, description["input_shape"]))
        kind = f"Classification of samples {into}." if classes else "Regression: one number for each sample."
        task = f"{kind} The network sees {shape} numbers, imputed and standardised by the training sites."
    average = description.get(COMBINATION)
    algorithm = average["members"][0]["label"] if average else description["algorithm"]
    mean = (
        f" Its weights are the mean of those of {average['kept']} runs, which began at the same weights and had other "
        "minibatches."
        if average and average["kept"] > 1
        else ""
    )
    return (
        f"{task} The network {description['network']} was trained with {algorithm} on "
        f"{len(description['domains'])} sites: {', '.join(description['domains'])}.{mean}"
    )


def _compared(description: Mapping[str, Any]) -> Table:
    score = "accuracy (%)" if description.get("task", "classification") == "classification" else "100 R²"
    columns = (
        Column("mean", f"{score} at held-out sites", kind="number", digits=".1f"),
        Column("interval", "95 % interval for a new site", kind="text"),
    )
    rows = tuple(
        Row((100 * found["mean"], f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"), key=name)
        for name, found in description["compared"].items()
    )
    return Table("Algorithms compared", columns, rows, row_key="algorithm")


def _calibration(description: Mapping[str, Any]) -> str:
    before = np.mean([found["before"] for found in description["calibration"].values()])
    after = np.mean([found["after"] for found in description["calibration"].values()])
    warning = "Calibration on training sites does not guarantee calibration at a new site."
    if description["temperature"] == 1:
        return (
            f"No temperature was fitted: all validation {_samples(description)} of the training sites were classified "
            f"correctly. Mean calibration error at held-out sites: {before:.3f}. {warning}"
        )
    return (
        f"Logits are divided by the temperature {description['temperature']:.3g} before the softmax. It was fitted on "
        f"validation {_samples(description)} of the training sites. Mean calibration error at held-out sites: "
        f"{before:.3f} before, {after:.3f} after. {warning}"
    )


def _samples(description: Mapping[str, Any]) -> str:
    return "images" if description["stored_size"] else "samples"


def _limitations(description: Mapping[str, Any]) -> str:
    count = len(description["forecast"]["accuracies"])
    few = (
        f"The forecast rests on {count} sites; its interval is wide, and a site that differs more from all of them "
        "can be outside it.\n\n"
        if count < FEW_SITES
        else ""
    )
    stopped = description.get("stopped_runs", 0)
    early = f"A time limit stopped {stopped} of the runs before their last minibatch.\n\n" if stopped else ""
    what = _samples(description)
    always = f"The model always chooses one of its classes, also for {what} of something else. "
    return (
        f"{early}{few}The forecast assumes that a new site differs from the training sites as they differ from one "
        f"another. Intervals of single sites take {what} to be independent; {what} of one patient or video are not.\n\n"
        f"{always if description['classes'] else ''}Evaluate it on labelled {what} of the new site before use."
    )


def _usage(description: Mapping[str, Any]) -> str:
    if not description["stored_size"]:
        call = "model.probabilities(samples)" if description["classes"] else "model(model.transform(samples))"
        text = f"In Python: model = pogm.load(FOLDER); {call}, with columns by name or an array."
        if description["trial"]["dataset"]["name"] != ArrayFile.__name__:  # a published dataset, in files of its own
            return text
        return (
            f"{text}\n\nOn the command line: pogm predict FOLDER FILE --csv predictions.csv, pogm evaluate FOLDER FILE."
        )
    return (
        "In Python: model = pogm.load(FOLDER); model.probabilities([image]), with the classes in model.classes.\n\n"
        "On the command line: pogm predict FOLDER IMAGES --csv predictions.csv, pogm evaluate FOLDER NEW_SITE, "
        "pogm export FOLDER --to onnx."
    )


def _markdown(description: Mapping[str, Any], sections: Sequence[tuple[str, str, list[Table]]]) -> str:
    lines = [f"# {_title(description)}", ""]
    lines += [f"- **{name}**: {text}" for name, text in _facts(description).items() if text]
    for title, text, tables in sections:
        lines += ["", f"## {title}", "", text]
        if title == "Hardest images":
            lines += ["", f"![{title}]({HARDEST_FILE})"]
        for table in tables:
            lines += ["", "```text", table.text().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def contact_sheet(results: Sequence[SiteResult], trial: Trial, classes: Sequence[str], data: Path | None) -> bytes:
    """Return a PNG image of the hardest images, in the order of the probability of their true class."""
    from PIL import Image, ImageDraw

    domains = trial.task(data).load()
    scored = []
    for result in results:
        number = trial.dataset.domains.index(result.site)
        true = result.logits.log_softmax(-1).gather(1, result.labels[:, None])[:, 0].tolist()
        indices = range(len(true)) if result.indices is None else result.indices.tolist()
        answers = zip(true, indices, result.labels.tolist(), result.logits.argmax(-1).tolist(), strict=True)
        scored += [(score, number, index, label, predicted) for score, index, label, predicted in answers]
    hardest = sorted(scored)[:HARDEST]
    rows = -(-len(hardest) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE, rows * (TILE + TEXT)), "white")
    draw = ImageDraw.Draw(sheet)
    for position, (_, number, index, label, predicted) in enumerate(hardest):
        left, top = position % COLUMNS * TILE, position // COLUMNS * (TILE + TEXT)
        sheet.paste(_tile(domains[number].inputs[index].numpy()), (left, top))
        for line, name in enumerate((classes[label], f"as {classes[predicted]}")):
            draw.text((left + 2, top + TILE + 1 + 12 * line), name[:LETTERS], fill="black")
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()


def _tile(pixels: "np.ndarray[Any, np.dtype[np.uint8]]") -> Any:
    """Return a stored image [C, H, W] as a tile; other than three channels are shown as their mean."""
    from PIL import Image

    shown = pixels if len(pixels) == 3 else np.repeat(pixels.mean(0, keepdims=True).astype(np.uint8), 3, axis=0)
    return Image.fromarray(np.ascontiguousarray(shown.transpose(1, 2, 0))).resize((TILE, TILE))
