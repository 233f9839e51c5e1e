"""Predictions of a trained model for files and folders of images."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pogm._system.errors import DataError, UsageError
from pogm._system.terminal import printable
from pogm.benchmark.results.classification import Array, softmax
from pogm.data.images.decode import IMAGE_SUFFIXES, BadImage
from pogm.data.images.listing import Walker
from pogm.data.images.parallel import Progress, map_in_order, no_progress
from pogm.deployment.model import TrainedModel
from pogm.modifiers.base import Predictor

OnBadImage = Literal["refuse", "skip"]
BATCH_SIZE = {"cpu": 32, "cuda": 256}
LISTED = 20  # bad images that a message names


class ImageGroup(NamedTuple):
    """Images of one domain. A model that adapts to its batch predicts each group on its own."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Predictions:
    """Logits of images, and the reasons why some images have none."""

    paths: tuple[str, ...]
    classes: tuple[str, ...]
    logits: npt.NDArray[np.float32]  # [N, C]; NaN for an image that cannot be decoded
    reasons: tuple[str, ...]  # why an image has no prediction; empty if it has one
    temperature: float = 1.0  # divides the logits
    key: str = "path"  # what the paths are, the name of the first column of CSV

    @cached_property
    def is_predicted(self) -> npt.NDArray[np.bool_]:
        """True for each image that has a prediction: [N]."""
        return np.array([not reason for reason in self.reasons], dtype=bool)

    @cached_property
    def probabilities(self) -> Array:
        """Probability of each class: [N, C]. NaN for an image without a prediction."""
        return softmax(self.logits, self.temperature)

    @property
    def names(self) -> list[str]:
        """Name of the predicted class of each image; empty for an image without a prediction."""
        best = np.where(self.is_predicted, self.logits.argmax(1), 0)
        return [self.classes[i] if known else "" for i, known in zip(best, self.is_predicted, strict=True)]

    def counts(self) -> str:
        """Return the number of images of each predicted class as text."""
        counted = Counter(name for name in self.names if name)
        skipped = len(self.paths) - int(self.is_predicted.sum())
        parts = [f"{name} {counted[name]}" for name in self.classes if counted[name]]
        return ", ".join([*parts, *([f"not readable {skipped}"] if skipped else [])])

    def csv(self, *, reasons: bool = False, more: Mapping[str, Sequence[str]] | None = None) -> bytes:
        """Return CSV with a header: path, further columns, prediction, and ``probability_<class>`` for each class.

        Args:
            reasons: Add the column ``reason``, which says why an image has no prediction.
            more: Further columns after the path, by name.
        """
        out, more = io.StringIO(), more or {}
        writer = csv.writer(out, lineterminator="\n")
        probabilities = [f"probability_{name}" for name in self.classes]
        writer.writerow([self.key, *more, "prediction", *probabilities, *(["reason"] if reasons else [])])
        for i, name in enumerate(self.names):
            numbers = [f"{value:.6g}" for value in self.probabilities[i]] if name else [""] * len(self.classes)
            columns = (values[i] for values in more.values())
            writer.writerow([self.paths[i], *columns, name, *numbers, *([self.reasons[i]] if reasons else [])])
        return out.getvalue().encode("utf-8", "surrogateescape")  # a file name may be any bytes


def find_images(paths: Sequence[Path]) -> list[ImageGroup]:
    """List images in a stable order, each one once.

    A folder is searched recursively for files with the suffix of an image; it is one group. Files that are named
    themselves are images whatever their suffix is; files with the same parent are one group. Hidden files are ignored.

    Raises:
        DataError: A path does not exist, a folder has no images, or a link leads nowhere.
    """
    groups: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            raise DataError(f"Expected an image or a folder at {printable(str(path))}; found none. Check the path.")
        name, found = (str(path), _list_folder(path)) if path.is_dir() else (str(path.parent), [str(path)])
        groups.setdefault(name, []).extend(image for image in found if image not in seen)
        seen.update(found)
    return [ImageGroup(name, tuple(images)) for name, images in groups.items() if images]


def _list_folder(folder: Path) -> list[str]:
    walker = Walker(str(folder), follow_outside=True)
    found = [file.lstrip("/") for file in walker.walk_files(walker.top) if file.lower().endswith(IMAGE_SUFFIXES)]
    if walker.bad:
        named = "; ".join(f"{printable(link.path)} {link.reason}" for link in walker.bad[:LISTED])
        raise DataError(f"Expected images in {printable(str(folder))}; found that {named}. Remove them.")
    if not found:
        raise DataError(
            f"Expected images in {printable(str(folder))}; found none whose name ends with {', '.join(IMAGE_SUFFIXES)}."
            " Check the path, or name the files themselves."
        )
    return [str(folder / file) for file in found]


def predict(
    model: TrainedModel,
    groups: Sequence[ImageGroup],
    *,
    batch_size: int | None = None,
    on_bad_image: OnBadImage = "refuse",
    progress: Progress = no_progress,
) -> Predictions:
    """Predict images with a trained model, on the device of its weights. All CPU cores decode images.

    A model that adapts to its batch (`TrainedModel.adapts`) predicts each group as one domain, in batches of its own
    size. Predictions of other models do not depend on groups and batches, except by rounding. If ``model.description``
    has a ``temperature``, probabilities are scaled by it.

    Args:
        model: The model.
        groups: Images, see `find_images`.
        batch_size: Images of one pass (default: 32 on a CPU, 256 on a GPU).
        on_bad_image: What to do about images that cannot be decoded: ``"refuse"`` raises an error that lists them,
            ``"skip"`` leaves them without a prediction.
        progress: Shows how many images were predicted.

    Raises:
        DataError: Images cannot be decoded.
        UsageError: The batch size is below 1, or it is given for a model that adapts to its batch.
    """
    size = _choose_batch_size(model, batch_size)
    paths = tuple(path for group in groups for path in group.paths)
    domains = [number for number, group in enumerate(groups) for _ in group.paths] if model.adapts else [0] * len(paths)
    logits = np.full((len(paths), len(model.classes)), np.nan, np.float32)
    reasons = [""] * len(paths)

    def predict_all() -> Iterator[int]:
        """Write logits and reasons; yield the index of each image when it is done."""
        decoded = map_in_order(lambda path: _decode(model, path), paths)
        domain, predictor, done = 0, model.predictor(), 0
        for batch in _make_batches(decoded, domains, reasons, size):
            indices = [i for i, _ in batch]
            if on_bad_image == "skip" or not any(reasons):  # else only decode, to list all bad images
                if domains[indices[0]] != domain:
                    domain, predictor = domains[indices[0]], model.predictor()
                logits[indices] = _predict_batch(model, predictor, [image for _, image in batch])
                for i in indices:
                    if not np.isfinite(logits[i]).all():
                        reasons[i] = "the logits of the model are not finite"
            yield from range(done, indices[-1] + 1)
            done = indices[-1] + 1
        yield from range(done, len(paths))

    for _ in progress(predict_all(), len(paths)):
        pass
    if on_bad_image == "refuse" and any(reasons):
        raise _bad_images_error(paths, reasons)
    return Predictions(paths, model.classes, logits, tuple(reasons), model.temperature)


def _choose_batch_size(model: TrainedModel, batch_size: int | None) -> int:
    if batch_size is not None and model.adapts:
        raise UsageError(
            f"Expected the batch size of the model, {model.batch_size}, because it adapts to its batch and another "
            f"size would change the predictions; found {batch_size}. Leave it out."
        )
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"Expected a batch size of at least 1; found {batch_size}. Leave it out.")
    return batch_size or model.batch_size or BATCH_SIZE.get(_device(model).type, BATCH_SIZE["cpu"])


def _device(model: TrainedModel) -> torch.device:
    return next(model.parameters()).device


def _decode(model: TrainedModel, path: str) -> Tensor | str:
    """Return the stored form of an image, or the reason why there is none."""
    try:
        return model.transform.to_stored(path)
    except BadImage as error:
        return f"{error.kind}: {error.reason}"
    except OSError as error:
        return f"unreadable: {error.strerror or error}"


def _make_batches(
    decoded: Iterable[Tensor | str], domains: Sequence[int], reasons: list[str], size: int
) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield batches of one domain, as indices and images, and note the reasons for images that were not decoded."""
    batch: list[tuple[int, Tensor]] = []
    for i, image in enumerate(decoded):
        if isinstance(image, str):
            reasons[i] = image
            continue
        if batch and (len(batch) == size or domains[batch[0][0]] != domains[i]):
            yield batch
            batch = []
        batch.append((i, image))
    if batch:
        yield batch


def predict_stored(model: TrainedModel, stored: Tensor, batch_size: int) -> Tensor:
    """Return the outputs of stored inputs [N, ...] of one site, or of one domain."""
    size = model.batch_size or batch_size
    predict = model.predictor()  # one for the site: ITTA keeps state between batches
    prepare, statistics = model.transform.transform.prepare, model.statistics
    with torch.no_grad():
        parts = [predict(prepare(part.to(_device(model)), statistics)).cpu() for part in torch.split(stored, size)]
    return torch.cat(parts)


def _predict_batch(model: TrainedModel, predictor: Predictor, images: list[Tensor]) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        inputs = model.transform.transform.to_inputs(torch.stack(images).to(_device(model)), torch.float32)
        result: npt.NDArray[np.float32] = predictor(inputs).float().cpu().numpy()
    return result


def _bad_images_error(paths: Sequence[str], reasons: Sequence[str]) -> DataError:
    bad = [f"  {printable(path)}: {printable(why)}" for path, why in zip(paths, reasons, strict=True) if why]
    more = [f"  and {len(bad) - LISTED} more"] if len(bad) > LISTED else []
    return DataError(
        f"Expected images that can be decoded; found {len(bad)} of {len(paths)} that cannot:",
        *bad[:LISTED],
        *more,
        "Replace or remove them, or leave them without a prediction: --on-bad-image skip.",
    )
