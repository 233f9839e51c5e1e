"""Evaluation of a trained model on labelled images of new sites."""

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pogm._system.errors import DataError, UsageError, unknown_name_error
from pogm._system.terminal import printable
from pogm.benchmark.results.classification import (
    ClassificationMetrics,
    Labels,
    TemperatureScaling,
    classification_metrics,
    scale_temperature,
)
from pogm.benchmark.results.classification_tables import calibration_table, confusion_table, metrics_table, recall_table
from pogm.data.images.decode import IMAGE_SUFFIXES
from pogm.data.images.listing import Directory, Walker
from pogm.data.images.metadata import SPLITS, is_table, make_listing, read_table, split_options, to_pairs
from pogm.data.images.parallel import Progress, no_progress
from pogm.deployment.model import TrainedModel
from pogm.deployment.predict import ImageGroup, OnBadImage, Predictions, predict

LAYOUT = (
    "Arrange the images as <class>/<image> for one site, or <site>/<class>/<image> for several, or list them in a "
    "metadata file with the columns path, label and domain."
)
ALL = "all sites"
MOST_CLASSES = 20  # of a confusion matrix that is printed
FEWEST_IMAGES = 30  # to fit a temperature


class Site(NamedTuple):
    """Labelled images of one site."""

    name: str
    paths: tuple[str, ...]
    labels: tuple[int, ...]  # index of the class in the model


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
                    f"{printable(site.name)} has the name of a training site of the model. If it has the same images, "
                    "the accuracy is higher than at a new site."
                )
            elif site.name in self.description.get("held_out", ()):
                found.append(
                    f"{printable(site.name)} has the name of a site that was held out when the model was trained. If "
                    "its accuracy influenced which model you chose, the accuracy is higher than at a new site."
                )
        if self.ignored:
            listed = ", ".join(f"{printable(name)} ({count})" for name, count in self.ignored.items())
            found.append(f"{sum(self.ignored.values())} images of classes unknown to the model are left out: {listed}.")
        if skipped := int((~self.predictions.is_predicted).sum()):
            found.append(f"{skipped} images that cannot be decoded are left out.")
        return found

    def text(self) -> str:
        """Return tables for a terminal: metrics by site, recall by class, confusion matrix, calibration."""
        pooled = self.metrics[ALL if len(self.sites) > 1 else self.sites[0].name]
        title = f"{self.description.get('algorithm')}, {self.description.get('network')}"
        tables = [metrics_table(self.metrics, f"{title}: metrics by site"), recall_table(pooled)]
        if len(self.classes) <= MOST_CLASSES:
            tables.append(confusion_table(pooled))
        if self.scalings:
            source = (
                "The temperature is that of the model."
                if "temperature" in self.description
                else "The temperature is fitted on the images of the site; the error after scaling is measured on the "
                "half of them that did not fit it. The model has no temperature of its own."
            )
            tables.append(calibration_table(self.scalings, source))
        return "\n".join(table.text() for table in tables)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: model, metrics and calibration by site, warnings."""
        names = ("algorithm", "network", "dataset", "trial_id", "domains", "held_out")
        sites = {
            name: metrics.to_json()
            | {"temperature_scaling": self.scalings[name].to_json() if name in self.scalings else None}
            for name, metrics in self.metrics.items()
        }
        pooled = {"all_sites": sites.pop(ALL)} if len(self.sites) > 1 else {}
        model = {name: self.description[name] for name in names if name in self.description}
        return {
            "model": model | {"temperature": self.predictions.temperature},
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


def read_sites(
    images: Path | str,
    classes: Sequence[str],
    *,
    sites: Sequence[str] = (),
    split: str | None = None,
    mapping: Mapping[str, str] | None = None,
    ignore_unknown_classes: bool = False,
) -> tuple[list[Site], dict[str, int]]:
    """List the labelled images of one or more sites, from a folder or a metadata file.

    Every file in a class folder counts as an image, also in folders below it, as in training. Hidden files are ignored.

    Args:
        images: As in `evaluate`.
        classes: Names of the classes that the model knows.
        sites: As in `evaluate`.
        split: As in `evaluate`.
        mapping: New names of classes, if ``images`` names no class mapping. An empty name leaves the class out.
        ignore_unknown_classes: Leave out images of other classes.

    Returns:
        The sites, and the number of images of each class that was left out.

    Raises:
        DataError: The layout is wrong, a site has no images, or a class is unknown.
        UsageError: A site or an option is unknown.
    """
    name, options = split_options(str(images))
    path = Path(name)
    has_table = is_table(path) and not path.is_dir()
    if has_table:
        listed, given = _list_table(path, options, split)
    elif split is not None:
        raise UsageError(f"Expected a metadata file for the split {split}; found {name}. Leave the split out.")
    else:
        given = to_pairs(make_listing(path, options).mapping) if path.is_dir() else {}
        listed = _list_class_folders(path, {*classes, *(mapping or {}), *given})
    if unknown_sites := [site for site in sites if site not in listed]:
        raise unknown_name_error(f"a site of {printable(name)}", unknown_sites[0], listed)
    renamed = given or mapping or {}
    found, unknown, left_out = [], Counter[str](), Counter[str]()
    for site in dict.fromkeys(sites or listed):
        rows = [(path, renamed.get(label, label)) for path, label in listed[site]]
        left_out.update(label for _, label in listed[site] if not renamed.get(label, label))
        unknown.update(label for _, label in rows if label and label not in classes)
        known = [(path, classes.index(label)) for path, label in rows if label in classes]
        found.append(Site(site, tuple(path for path, _ in known), tuple(label for _, label in known)))
    if unknown and not ignore_unknown_classes:
        raise _unknown_classes_error(name, "labels" if has_table else "folders", unknown, classes)
    if empty := [site.name for site in found if not site.paths]:
        raise DataError(
            f"Expected images of the classes {_join(classes)}; found none in {_join(empty)}. Check the path. {LAYOUT}"
        )
    return found, dict(unknown + left_out)


Labelled = dict[str, list[tuple[str, str]]]  # path and label of each image, by site


def _list_table(path: Path, options: Mapping[str, str], split: str | None) -> tuple[Labelled, dict[str, str]]:
    """List the images of a metadata file; return them and the class mapping that belongs to it."""
    listing = make_listing(path, options)
    tree = read_table(path, to_pairs(listing.columns), least_domains=1)
    if split is not None and split not in SPLITS:
        raise unknown_name_error("a split", split, SPLITS)
    if split is not None and not tree.splits:
        raise DataError(
            f"Expected a column of splits in {printable(str(path))}; found none. Leave the split out, or name the "
            f"column: {printable(path.name)}:split=COLUMN"
        )
    listed: Labelled = {}
    for number, file in enumerate(tree.files):
        if split is None or tree.splits[number] == split:
            labelled = (str(path.parent / file.path), tree.classes[file.label])
            listed.setdefault(tree.domains[file.domain], []).append(labelled)
    if not listed:
        raise DataError(f"Expected images of the split {split} in {printable(str(path))}; found none. Choose another.")
    return listed, to_pairs(listing.mapping)


def _list_class_folders(folder: Path, classes: Collection[str]) -> Labelled:
    """List the images of a folder of classes, or of sites; ``classes`` has all known names of class folders."""
    if not folder.is_dir():
        raise DataError(
            f"Expected a folder of images at {printable(str(folder))}; found none. Check the path. {LAYOUT}"
        )
    walker = Walker(str(folder), follow_outside=True)
    top = _list_folders(walker, walker.top, folder)
    if not top:
        raise DataError(f"Expected class folders in {printable(str(folder))}; found none. {LAYOUT}")
    if _has_sites(walker, top, classes):
        directories = {site.name: _list_folders(walker, site, folder) for site in top}
    else:
        directories = {folder.resolve().name: top}
    listed = {
        site: [(str(folder / file), found.name) for found in inner for file in walker.walk_files(found)]
        for site, inner in directories.items()
    }
    if walker.bad:
        named = "; ".join(f"{printable(link.path)} {link.reason}" for link in sorted(walker.bad)[:5])
        raise DataError(f"Expected images in {printable(str(folder))}; found that {named}. Remove them.")
    return listed


def _has_sites(walker: Walker, top: Sequence[Directory], classes: Collection[str]) -> bool:
    """Return True for ``<site>/<class>/<image>`` and False for ``<class>/<image>``."""
    listings = [walker.list_directory(directory) for directory in top]
    walker.bad.clear()  # they are listed again
    has_images = any(file.lower().endswith(IMAGE_SUFFIXES) for _, files in listings for file in files)
    outer = {directory.name for directory in top}
    inner = {directory.name for directories, _ in listings for directory in directories}
    known_inside = not inner.isdisjoint(classes)
    if not outer.isdisjoint(classes):
        return known_inside and not has_images
    return known_inside or (bool(inner) and not has_images)


def _list_folders(walker: Walker, directory: Directory, root: Path) -> list[Directory]:
    """List the folders in a folder that must not contain images."""
    directories, files = walker.list_directory(directory)
    loose = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    if loose:
        path = printable(str(root / directory.path))
        raise DataError(
            f"Expected only class folders in {path}; found {len(loose)} images, such as {printable(loose[0])}. "
            f"{LAYOUT} For images without labels: pogm predict."
        )
    return directories


def _unknown_classes_error(images: str, what: str, unknown: Mapping[str, int], classes: Sequence[str]) -> DataError:
    listed = ", ".join(f"{printable(name)} ({count} images)" for name, count in unknown.items())
    folded = {name.casefold(): name for name in classes}
    near = {
        name: folded[found[0]]
        for name in unknown
        if (found := difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6))
    }
    hint = "".join(f"Did you mean {printable(right)!r} by {printable(name)!r}? " for name, right in near.items())
    return DataError(
        f"Expected {what} with the names of the classes of the model, {_join(classes)}, in {printable(images)}; "
        f"found {listed}. {hint}Rename the {what}, or leave their images out: --ignore-unknown-classes. {LAYOUT}"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names))
