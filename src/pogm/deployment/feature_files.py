"""Files of features, which `pogm data features` writes: outputs of a fixed network, as a dataset of vectors."""

import fcntl
import glob
import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from pogm._system.errors import DataError, InUseError, UsageError
from pogm._system.files import canonical_json, digest, open_own_file, write_atomic
from pogm.benchmark.plan.trial import Trial
from pogm.data.dataset_paths import is_table, split_options
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.data.datasets.image_dataset import ImageDataset, LargeImages
from pogm.data.images.image_listing import make_listing, to_pairs
from pogm.data.images.intensity import Intensity
from pogm.data.images.metadata import SPLITS
from pogm.data.images.parallel import map_in_order
from pogm.data.tables.arrays import read_arrays
from pogm.deployment.features import BATCH, build_extractor
from pogm.deployment.labelled_images import read_sites
from pogm.deployment.predict import find_images
from pogm.deployment.preprocessing import ImageTransform
from pogm.engine.session import Engine

FACTS = ("network", "weights", "image_size", "stored_size", "intensity")  # arrays that describe an `Extraction`
FLOAT_BYTES = 4
Batch = torch.Tensor | tuple[str, ...]  # stored images [N, C, H, W], or paths of images
Progress = Callable[[Iterable[Batch], int], Iterator[Batch]]


class Written(NamedTuple):
    """Contents of a file that was written."""

    images: int
    features: int  # of an image
    has_labels: bool


@dataclass(frozen=True)
class Extraction:
    """Network and preprocessing of the features in a file, and the classes of its images."""

    network: str
    weights: str
    image_size: int
    stored_size: tuple[int, int] | None  # height and width to which an image is resized first; None if it is no file
    intensity: str  # scaling of images with more than 8 bits per channel; empty if there are none
    classes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the extraction from a file of features.

        Raises:
            DataError: The file is not a `FeatureFile`, or its images are not files.
        """
        if path.suffix.lower() != ".npz":
            raise DataError(
                f"Expected a file of features, with the suffix .npz; found {path}. Name the file that pogm data "
                "features wrote for the training sites."
            )
        found = read_arrays(path)
        if "network" in found and "stored_size" not in found:
            raise DataError(
                f"Expected features of image files in {path}; found those of a dataset whose images are not files. "
                "Compute features of a folder of images, and name their file."
            )
        if missing := [name for name in (*FACTS, "y") if name not in found]:
            raise DataError(
                f"Expected a file of features in {path}; found no {', '.join(missing)} in it. Write one with: "
                "pogm data features FOLDER --out FILE"
            )
        height, width = found["stored_size"].tolist()
        return cls(
            network=str(found["network"]),
            weights=str(found["weights"]),
            image_size=int(found["image_size"]),
            stored_size=(height, width),
            intensity=str(found["intensity"]),
            classes=tuple(sorted(set(found["y"].tolist()))),
        )

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that a file stores besides the samples."""
        values = {name: getattr(self, name) for name in FACTS}
        return {name: np.array(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class FeatureFile:
    """Features of images, to be computed, and the other arrays of their file.

    The file is an ``.npz`` file, which is a dataset of vectors itself. Its arrays are ``x`` [N, F], ``y`` (names of the
    classes), ``domain``, ``group`` and ``split`` if the images have them, and the fields of `Extraction`. The array
    ``call`` identifies the call that wrote it.
    """

    extraction: Extraction
    extract: Callable[[Any], torch.Tensor]  # from a batch to its features
    batches: Sequence[Batch]
    arrays: dict[str, Any]  # arrays with an entry for each image, besides the features
    identity: dict[str, Any]  # everything else that the features depend on, as JSON values

    @classmethod
    def of_dataset(cls, trial: Trial, data: Path | None, engine: Engine) -> Self:
        """Return the file of all images of a dataset.

        Args:
            trial: Trial that names the dataset, the network and its weights.
            data: Data folder.
            engine: Device.

        Raises:
            UsageError: The dataset does not consist of images.
        """
        dataset, training = trial.dataset, trial.training
        if isinstance(dataset, ArrayDataset) or len(dataset.input_shape) != 3:
            raise UsageError(
                f"Expected a dataset of images, of which a network computes features; found {dataset.title}. Train on "
                "it as it is."
            )
        transform, facts = dataset.transform(training), dataset.describe_data(data)
        domains = trial.task(data).load()
        batches = [part for domain in domains for part in torch.split(domain.inputs, BATCH)]
        extraction = Extraction(
            training.network,
            training.weights,
            transform.shape[-1],
            (batches[0].shape[-2], batches[0].shape[-1]) if isinstance(dataset, ImageDataset) else None,
            facts.get("intensity", ""),
            dataset.class_names(data),
        )
        labels = torch.cat([domain.labels for domain in domains]).numpy()
        arrays: dict[str, Any] = {
            "y": np.array(extraction.classes)[labels],
            "domain": np.repeat(np.array(dataset.domains), [len(domain.labels) for domain in domains]),
        }
        groups = [domain.groups for domain in domains if domain.groups is not None]
        splits = [domain.splits for domain in domains if domain.splits is not None]
        arrays |= {"group": torch.cat(groups).numpy()} if groups else {}
        arrays |= {"split": np.array(list(SPLITS))[torch.cat(splits).numpy()]} if splits else {}
        extract = build_extractor(training, transform, engine)
        return cls(extraction, extract, batches, arrays, {"trial": trial.to_json(), **facts})

    @classmethod
    def of_new_sites(cls, reference: Path, images: str, engine: Engine) -> Self:
        """Return the file of the images of new sites, whose features are computed as those in another file.

        The images may have labels (``<class>/<image>``, ``<site>/<class>/<image>``, a metadata file), with names of
        classes of the other file. Otherwise the file has no array ``y``: it can be predicted, but not evaluated. The
        array ``path`` has the paths of the images.

        Args:
            reference: File of features of the training sites.
            images: Folder, image or metadata file.
            engine: Device.

        Raises:
            DataError: The first file has no `Extraction`, or an image cannot be read.
        """
        extraction = Extraction.read(reference)
        arrays = _list_images(images, extraction.classes)
        paths = arrays["path"].tolist()
        training = LargeImages(network=extraction.network, weights=extraction.weights, image_size=extraction.image_size)
        transform = training.transform(ImageDataset.input_shape)
        scaling = Intensity.parse(extraction.intensity) if extraction.intensity else None
        assert extraction.stored_size is not None  # `read` checks it
        preprocessing = ImageTransform(transform, extraction.stored_size, scaling)
        extract = build_extractor(training, transform, engine)

        def decode_and_extract(some: tuple[str, ...]) -> torch.Tensor:
            return extract(torch.stack(list(map_in_order(preprocessing.to_stored, some))))

        batches = [tuple(paths[start : start + BATCH]) for start in range(0, len(paths), BATCH)]
        files = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
        identity = {"files": files, "reference": digest(reference.read_bytes())}
        return cls(extraction, decode_and_extract, batches, arrays, identity)

    def write(self, out: Path, progress: Progress) -> Written:
        """Compute the features and write the file, unless the same call has written it.

        Features that are computed are kept in a file beside it until it is complete, so that the same call continues
        after a stop. Then such files of stopped calls with other settings are removed, too.

        Args:
            out: The file.
            progress: Shows how many batches are done.
        """
        columns = {name: column.tolist() for name, column in self.arrays.items()}
        call = digest(canonical_json({"columns": columns, **self.identity}).encode())
        with suppress(DataError):  # the file is absent, or another one
            known = read_arrays(out, ("x", "call"))
            if known["call"] == call:
                count, width = known["x"].shape
                return Written(count, width, "y" in self.arrays)
        x = self._compute_rows(out.with_name(f"{out.name}.{call[:8]}.partial"), progress)
        content = io.BytesIO()
        np.savez(content, x=x, call=call, **self.arrays, **self.extraction.arrays())
        write_atomic(out, content.getvalue())
        for unfinished in out.parent.glob(f"{glob.escape(out.name)}.*.partial*"):  # also those with other settings
            unfinished.unlink(missing_ok=True)
        return Written(len(x), x.shape[1], "y" in self.arrays)

    def _compute_rows(self, partial: Path, progress: Progress) -> npt.NDArray[np.float32]:
        """Compute the features [N, F], and append them to a file, which may have the first of them.

        Raises:
            InUseError: Another process writes the file.
            DataError: The file cannot be written, for example on a full disk.
        """
        width = self.extract(self.batches[0][:1]).shape[1]
        ends = list(accumulate(map(len, self.batches)))
        partial.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "ab", opener=open_own_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InUseError(
                    f"Expected to write {partial}; found that another process does. Wait for it."
                ) from error
            complete = bisect_right(ends, file.tell() // (width * FLOAT_BYTES))
            done = max(complete - 1, 0)  # after a power failure the content of the last batch may be missing
            file.truncate(ends[done - 1] * width * FLOAT_BYTES if done else 0)
            for batch in progress(self.batches[done:], len(self.batches) - done):
                rows = self.extract(batch).numpy().tobytes()
                try:
                    file.write(rows)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError as error:
                    raise DataError(
                        f"Expected to write {partial}; found: {error.strerror}. Free some space; then the same command "
                        "continues."
                    ) from error
        return np.memmap(partial, np.float32, "r", shape=(ends[-1], width))


def _list_images(images: str, classes: Sequence[str]) -> dict[str, Any]:
    """Return the arrays path, domain and, if the images have labels, y."""
    name, options = split_options(images)
    folder = Path(name)
    renamed = to_pairs(make_listing(folder, options).mapping) if folder.is_dir() else {}
    inner = [path.name for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_dir()]
    if is_table(folder) or not {*classes, *renamed}.isdisjoint(inner):
        sites, _ = read_sites(images, classes, to_ignore="map them to an empty name in classes.csv")
        rows = [
            (path, site.name, classes[n]) for site in sites for path, n in zip(site.paths, site.labels, strict=True)
        ]
    else:
        rows = [(path, Path(group.name).resolve().name, "") for group in find_images([folder]) for path in group.paths]
    path, domain, label = (np.array(column) for column in zip(*rows, strict=True))
    return {"path": path, "domain": domain, **({"y": label} if label[0] else {})}
