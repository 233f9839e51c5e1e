"""Evaluation of a trained model on labelled images of new sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.benchmark.results.classification import (
    ClassificationMetrics,
    Labels,
    TemperatureScaling,
    classification_metrics,
    scale_temperature,
)
from pogm.benchmark.results.classification_tables import calibration_table, confusion_table, metrics_table, recall_table
from pogm.data.images.image_listing import to_pairs
from pogm.data.images.parallel import Progress, no_progress
from pogm.deployment.labelled_images import Site, read_sites
from pogm.deployment.model import TrainedModel
from pogm.deployment.predict import ImageGroup, OnBadImage, Predictions, predict

ALL = "all sites"
MOST_CLASSES = 20  # of a confusion matrix that is printed
FEWEST_IMAGES = 30  # to fit a temperature


@dataclass(frozen=True)
class Evaluation:
    """Predictions and metrics of a model on one or more sites."""

    sites: tuple[Site, ...]
    predictions: Predictions  # of the images of all sites, in their order
    description: Mapping[str, Any]  # of the model
    ignored: Mapping[str, int]  # images of classes that the model does not know, by class

    @cached_property
    def metrics(self) -> dict[str, ClassificationMetrics]:
        """Metrics by site and, if there are several sites, of all images together."""
        return {
            name: classification_metrics(self.predictions.probabilities[rows], self._labels[rows], self.classes)
            for name, rows in self._rows.items()
        }

    @cached_property
    def scalings(self) -> dict[str, TemperatureScaling]:
        """Calibration before and after temperature scaling, by site.

        The temperature is that of the model. If it has none, it is fitted on the images of the site, which needs 30 of
        them, and the error after scaling is cross-fitted.
        """
        known = self.predictions.temperature if "temperature" in self.description else None
        return {
            name: scale_temperature(self.predictions.logits[rows], self._labels[rows], known)
            for name, rows in self._rows.items()
            if known is not None or len(rows) >= FEWEST_IMAGES
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the model."""
        return self.predictions.classes

    @property
    def _samples(self) -> str:
        return "images" if self.description["stored_size"] else "samples"

    @cached_property
    def _labels(self) -> Labels:
        return np.array([label for site in self.sites for label in site.labels], np.int64)

    @cached_property
    def _rows(self) -> dict[str, Labels]:
        """Indices of the predicted images of each site, and of all if there are several sites."""
        ends = np.cumsum([len(site.paths) for site in self.sites])
        spans = zip(self.sites, ends - [len(site.paths) for site in self.sites], ends, strict=True)
        is_predicted = self.predictions.is_predicted
        found = {site.name: np.flatnonzero(is_predicted[start:end]) + start for site, start, end in spans}
        if empty := [name for name, rows in found.items() if not len(rows)]:
            raise DataError(
                f"Expected images that can be decoded in every site; found none in {', '.join(map(printable, empty))}. "
                "Replace them, or remove the folder."
            )
        return found if len(found) == 1 else found | {ALL: np.flatnonzero(is_predicted)}

    def warnings(self) -> list[str]:
        """Return sentences about sites that are not new, and about images that do not count."""
        found = []
        for site in self.sites:
            if site.name in self.description.get("domains", ()):
                found.append(
                    f"{printable(site.name)} has the name of a training site of the model. If it has the same "
                    f"{self._samples}, the accuracy is higher than at a new site."
                )
            elif site.name in self.description.get("held_out", ()):
                found.append(
                    f"{printable(site.name)} has the name of a site that was held out when the model was trained. If "
                    "its accuracy influenced which model you chose, the accuracy is higher than at a new site."
                )
        for name in (site.name for site in self.sites):
            counts = [sum(row) for row in self.metrics[name].confusion]
            share = max(counts) / sum(counts)
            if max(counts) < sum(counts) and self.metrics[name].accuracy.value <= share:
                found.append(
                    f"The accuracy at {printable(name)} is {self.metrics[name].accuracy.value:.1%}; a model that "
                    f"always predicts {printable(self.classes[counts.index(max(counts))])} would have {share:.1%}. "
                    "Look at the balanced accuracy and at the recall of every class."
                )
        if self.ignored:
            listed = ", ".join(f"{printable(name)} ({count})" for name, count in self.ignored.items())
            total = f"{sum(self.ignored.values())} {self._samples}"
            found.append(f"{total} of classes unknown to the model are left out: {listed}.")
        if skipped := int((~self.predictions.is_predicted).sum()):
            found.append(f"{skipped} images that cannot be decoded are left out.")
        return found

    def text(self) -> str:
        """Return tables for a terminal: metrics by site, recall by class, confusion matrix, calibration."""
        pooled = self.metrics[ALL if len(self.sites) > 1 else self.sites[0].name]
        title = f"{self.description.get('algorithm')}, {self.description.get('network')}"
        samples = self._samples
        tables = [
            metrics_table(self.metrics, f"{title}: metrics by site", samples),
            recall_table(pooled, samples=samples),
        ]
        if len(self.classes) <= MOST_CLASSES:
            tables.append(confusion_table(pooled))
        if self.scalings:
            source = (
                "The temperature is that of the model."
                if "temperature" in self.description
                else f"The temperature is fitted on the {samples} of the site; the error after scaling is measured on "
                "the half of them that did not fit it. The model has no temperature of its own."
            )
            tables.append(calibration_table(self.scalings, source))
        return "\n".join([*(table.text() for table in tables), *self._compare_forecast()])

    def _compare_forecast(self) -> list[str]:
        """Return a line that compares the accuracies at new sites with the forecast of the model, if it has one."""
        new = [site.name for site in self.sites if site.name not in self.description.get("domains", ())]
        if not new or "forecast" not in self.description:
            return []
        low, mean, high = (self.description["forecast"][key] for key in ("low", "mean", "high"))
        found = []
        for name in new:
            value = self.metrics[name].accuracy.value
            where = "below" if value < low else "above" if value > high else "inside"
            found.append(f"{printable(name)}, {value:.1%}, is {where} it")
        return [
            f"Forecast of the model for a new site: {mean:.1%}, 95 % interval {low:.1%} to {high:.1%}. The accuracy at "
            f"{'; at '.join(found)}.\n"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: model, metrics and calibration by site, warnings."""
        sites = {
            name: metrics.to_json()
            | {"temperature_scaling": self.scalings[name].to_json() if name in self.scalings else None}
            for name, metrics in self.metrics.items()
        }
        pooled = {"all_sites": sites.pop(ALL)} if len(self.sites) > 1 else {}
        return {
            "model": describe_model(self.description) | {"temperature": self.predictions.temperature},
            "sites": sites,
            **pooled,
            "warnings": self.warnings(),
        }

    def csv(self) -> bytes:
        """Return the predictions as CSV, with the columns site and label after the path."""
        more = {
            "site": [site.name for site in self.sites for _ in site.paths],
            "label": [self.classes[label] for label in self._labels],
        }
        return self.predictions.csv(reasons=True, more=more)


def describe_model(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of ``model.json`` that an evaluation reports."""
    names = ("algorithm", "network", "dataset", "trial_id", "domains", "held_out")
    return {name: description[name] for name in names if name in description}


def evaluate(
    model: TrainedModel,
    images: Path | str,
    *,
    sites: Sequence[str] = (),
    split: str | None = None,
    ignore_unknown_classes: bool = False,
    batch_size: int | None = None,
    on_bad_image: OnBadImage = "refuse",
    progress: Progress = no_progress,
) -> Evaluation:
    """Evaluate a model on labelled images.

    If classes were renamed when the model was trained, the same names are changed here, unless ``images`` names another
    class mapping.

    Args:
        model: The model.
        images: Folder ``<class>/<image>`` (one site) or ``<site>/<class>/<image>`` (several sites), or a metadata file,
            with options after a colon as in training: ``new.csv:label=y,domain=hospital``, ``new_site:classes=FILE``.
        sites: Names of the sites to use; all if empty.
        split: Use only this split of a metadata file: train, val or test; all images if None.
        ignore_unknown_classes: Leave out images of classes that the model does not know.
        batch_size: As in `predict`.
        on_bad_image: As in `predict`.
        progress: Shows how many images were predicted.

    Raises:
        DataError: The layout is wrong, a class is unknown, or images cannot be decoded.
        UsageError: A site or an option is unknown.
    """
    dataset = model.description.get("trial", {}).get("dataset", {})
    mapping = to_pairs(tuple(dataset.get("mapping", ())))
    found, ignored = read_sites(
        images,
        model.classes,
        sites=sites,
        split=split,
        mapping=mapping,
        ignore_unknown_classes=ignore_unknown_classes,
    )
    groups = [ImageGroup(site.name, site.paths) for site in found]
    predictions = predict(model, groups, batch_size=batch_size, on_bad_image=on_bad_image, progress=progress)
    return Evaluation(tuple(found), predictions, model.description, ignored)
