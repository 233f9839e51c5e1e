"""Predictions and metrics of a model of tables, time series, audio or text, for files of samples."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pogm._system.errors import DataError, UsageError
from pogm._system.terminal import printable
from pogm.benchmark.results.regression import RegressionMetrics, regression_metrics, regression_table
from pogm.data.dataset_paths import split_options
from pogm.data.datasets.array_dataset import warn_of_unknown_categories
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.images.metadata import SPLITS
from pogm.data.tables.samples import ARRAYS, ROLES, SampleFile, read_columns
from pogm.deployment.evaluate import ALL, Evaluation, describe_model
from pogm.deployment.labelled_images import Site
from pogm.deployment.model import TrainedModel
from pogm.deployment.predict import Predictions, predict_stored
from pogm.deployment.preprocessing import ArrayTransform

BATCH = 1024


def is_sample_model(model: TrainedModel) -> bool:
    """Return True if the inputs of a model are not images."""
    return isinstance(model.transform, ArrayTransform)


@dataclass(frozen=True)
class PredictedNumbers:
    """Predictions of a regression for the rows of a file."""

    values: npt.NDArray[np.float64]  # [N]
    rows: tuple[str, ...]  # number of each row in the file, from 1

    def csv(self, *, more: Mapping[str, Any] | None = None) -> bytes:
        """Return CSV with the columns row, further columns, and prediction."""
        out, more = io.StringIO(), more or {}
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["row", *more, "prediction"])
        for i, value in enumerate(self.values):
            writer.writerow([self.rows[i], *(column[i] for column in more.values()), f"{value:.9g}"])
        return out.getvalue().encode()


@dataclass(frozen=True)
class RegressionEvaluation:
    """Predictions and metrics of a regression on one or more sites."""

    sites: npt.NDArray[np.str_]  # [N] site of each row
    predictions: PredictedNumbers
    targets: npt.NDArray[np.float64]  # [N]
    description: Mapping[str, Any]  # of the model

    @cached_property
    def metrics(self) -> dict[str, RegressionMetrics]:
        """Metrics by site and, if there are several sites, of all rows together."""
        found = {
            name: regression_metrics(self.predictions.values[self.sites == name], self.targets[self.sites == name])
            for name in dict.fromkeys(self.sites.tolist())
        }
        return found if len(found) == 1 else found | {ALL: regression_metrics(self.predictions.values, self.targets)}

    def warnings(self) -> list[str]:
        """Return sentences about sites that are not new."""
        known = [name for name in self.metrics if name in self.description.get("domains", ())]
        return [
            f"{printable(name)} has the name of a training site of the model. If it has the same samples, the errors "
            "are smaller than at a new site."
            for name in known
        ]

    def text(self) -> str:
        """Return the table for a terminal."""
        title = f"{self.description.get('algorithm')}, {self.description.get('network')}"
        return regression_table(self.metrics, f"{title}: metrics by site").text()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: model, metrics by site, warnings."""
        sites = {name: found.to_json() for name, found in self.metrics.items()}
        pooled = {"all_sites": sites.pop(ALL)} if ALL in sites else {}
        return {"model": describe_model(self.description), "sites": sites, **pooled, "warnings": self.warnings()}

    def csv(self) -> bytes:
        """Return the predictions as CSV, with the columns site and target."""
        return self.predictions.csv(more={"site": self.sites, "target": self.targets})


def predict_file(model: TrainedModel, name: str) -> Predictions | PredictedNumbers:
    """Predict the samples of a file; labels and domains are not needed.

    If the file has an array of paths, as `pogm data features --like` writes it, they identify the samples instead of
    numbers of rows. A model that adapts to its batch predicts the samples of each domain on their own, if the file has
    the column of the domain; otherwise the file is one domain.

    Args:
        model: A model of a table or of arrays.
        name: Path of a CSV, TSV, Parquet or ``.npz`` file; options may follow a colon.

    Raises:
        DataError: The file cannot be read, or a column is missing.
        UsageError: The model was not trained on a file.
    """
    file = _read_file(model, name)
    found = _predict(model, read_inputs(model, file), _sites(file) if model.adapts else None)
    key, names = _name_samples(file)
    return found if isinstance(found, PredictedNumbers) else replace(found, paths=tuple(names.tolist()), key=key)


def evaluate_file(
    model: TrainedModel,
    name: str,
    *,
    sites: Sequence[str] = (),
    split: str | None = None,
    ignore_unknown_classes: bool = False,
) -> Evaluation | RegressionEvaluation:
    """Evaluate a model on the samples of a file, with the column of the label of the training.

    Each value of the column of the domain is a site. Without such a column, the file is one site. Paths identify
    samples as in `predict_file`.

    Args:
        model: A model of a table or of arrays.
        name: Path of a file, see `predict_file`.
        sites: Sites to evaluate; empty for all.
        split: Given split to evaluate: "train", "val" or "test"; None for all rows.
        ignore_unknown_classes: Leave out rows of classes that the model does not know.

    Raises:
        DataError: The file cannot be read, a column or a site is missing, or a class is unknown.
    """
    file = _read_file(model, name, required=("label",) if split is None else ("label", "split"))
    inputs, site_of = read_inputs(model, file), _sites(file)
    known = sorted(set(site_of.tolist()))
    if missing := [site for site in sites if site not in known]:
        raise DataError(
            f"Expected sites of {file.where}: {', '.join(known)}; found {', '.join(missing)}. Name one of those."
        )
    is_used = np.ones(file.count, bool) if split is None else file.splits() == list(SPLITS).index(split)
    is_used &= np.isin(site_of, sites or known)
    ignored = Counter[str]()
    if ignore_unknown_classes and model.task == "classification":
        is_known = np.isin(file.texts("label"), model.classes)
        ignored.update(file.texts("label")[is_used & ~is_known].tolist())
        is_used &= is_known
    rows = {site: np.flatnonzero(is_used & (site_of == site)) for site in known if not sites or site in sites}
    empty = [site for site, index in rows.items() if not len(index)]
    if empty and ignored:
        raise DataError(
            f"Expected rows of the classes {', '.join(model.classes)} in every site of {file.where}; found none in "
            f"{', '.join(empty)}. Rename the classes, or name other sites with --site."
        )
    if empty:
        raise DataError(
            f"Expected rows of the split {split} in every site of {file.where}; found none in {', '.join(empty)}. Name "
            "other sites with --site, or leave --split out."
        )
    order = np.concatenate(list(rows.values()))
    labels = _dataset(model).read_labels(file, order)
    found = _predict(model, inputs[torch.from_numpy(order)], site_of[order])
    if isinstance(found, PredictedNumbers):
        chosen = replace(found, rows=tuple(str(row + 1) for row in order))
        return RegressionEvaluation(site_of[order], chosen, labels.double().numpy(), model.description)
    parts = torch.split(labels, [len(index) for index in rows.values()])
    key, names = _name_samples(file)
    listed = [
        Site(site, tuple(names[index].tolist()), tuple(part.tolist()))
        for (site, index), part in zip(rows.items(), parts, strict=True)
    ]
    named = replace(found, paths=tuple(names[order].tolist()), key=key)
    return Evaluation(tuple(listed), named, model.description, dict(ignored))


def _name_samples(file: SampleFile) -> tuple[str, npt.NDArray[np.str_]]:
    """Return the names of the samples [N], and what they are: "path" of an image or, without paths, "row" from 1."""
    paths = np.asarray(file.columns.get("path", ()))
    if file.kind == "table" or paths.shape != (file.count,):
        return "row", np.arange(1, file.count + 1).astype(str)
    return "path", paths.astype(str)


def _sites(file: SampleFile) -> npt.NDArray[np.str_]:
    """Return the site of each row; without a column of the domain, the name of the file."""
    return file.texts("domain") if "domain" in file.roles else np.full(file.count, file.path.stem)


def read_inputs(model: TrainedModel, file: SampleFile) -> Tensor:
    """Return the stored inputs [N, ...] of a file for a model; warn about texts that the model does not know."""
    dataset = _dataset(model)
    inputs = dataset.read_inputs(file)
    if dataset.kind == "table":
        warn_of_unknown_categories(dataset.encoding, file.features, file.where)
    return inputs


def _read_file(model: TrainedModel, name: str, required: Sequence[str] = ()) -> SampleFile:
    """Read a file in which columns have the roles of the training, unless others are given."""
    text, given = split_options(name)
    path, dataset = Path(text), _dataset(model)
    wanted = "CSV, TSV or Parquet" if dataset.kind == "table" else ".npz"
    if not path.is_file() or (dataset.kind == "table") == text.lower().endswith(ARRAYS) or path.suffix == "":
        found = "a folder" if path.is_dir() else "another kind of file" if path.is_file() else "none"
        features = " Features of images: pogm data features IMAGES --like FILE --out NEW_FILE"
        raise DataError(
            f"Expected a {wanted} file, as the model was trained on, at {printable(text)}; found {found}. Check the "
            f"path.{features if dataset.kind == 'vectors' else ''}"
        )
    columns = read_columns(path, given)
    roles = {role: column for role, column in {**dataset.options, **given}.items() if role in ROLES}
    if missing := [role for role in required if roles.get(role, role) not in columns]:
        names, found = (", ".join(map(printable, some)) for some in ([roles.get(m, m) for m in missing], columns))
        raise DataError(
            f"Expected the column {names} in {printable(path.name)}; found {found}. "
            f"Add it, or name another one after the path: {printable(path.name)}:{missing[0]}=COLUMN"
        )
    roles = {role: roles.get(role, role) for role in {*roles, *required} if roles.get(role, role) in columns}
    return SampleFile(path, dataset.kind, columns, roles)


def _dataset(model: TrainedModel) -> ArrayFile:
    if not isinstance(model.dataset, ArrayFile):
        raise UsageError(
            f"Expected a model of a table or of a file of arrays; found one of {model.dataset.title}. Train it on the "
            "file: pogm train FILE, or call the model in Python with model.transform."
        )
    return model.dataset


def _predict(model: TrainedModel, stored: Tensor, sites: npt.NDArray[np.str_] | None) -> Predictions | PredictedNumbers:
    """Predict stored inputs [N, ...]; a model that adapts to its batch starts again at each of the sites [N]."""
    parts = [torch.arange(len(stored))]
    if model.adapts and sites is not None:
        parts = [torch.from_numpy(np.flatnonzero(sites == name)) for name in dict.fromkeys(sites.tolist())]
    outputs = torch.cat([predict_stored(model, stored[part], BATCH).float() for part in parts])
    found = torch.empty_like(outputs)
    found[torch.cat(parts)] = outputs
    rows = tuple(str(row + 1) for row in range(len(stored)))
    if model.task == "regression":
        return PredictedNumbers(found.squeeze(-1).double().numpy(), rows)
    return Predictions(rows, model.classes, found.numpy(), ("",) * len(stored), model.temperature, "row")
