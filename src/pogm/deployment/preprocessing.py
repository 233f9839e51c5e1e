"""Preprocessing of a trained model, the same as in the evaluations of its training: of images, and of other data."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.data.datasets.array_dataset import warn_of_unknown_categories
from pogm.data.datasets.base import DomainDataset
from pogm.data.images.decode import BadImage, convert_image, decode, read_header
from pogm.data.images.intensity import NONE, Intensity
from pogm.data.transforms.base import Statistics, Transform

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageTransform:
    """Preprocessing of a trained model: the same as in the evaluations of its training.

    Args:
        transform: Transform from stored images to inputs of the network.
        stored_size: Height and width to which an image is resized first.
        intensity: Scaling of images with more than 8 bits per channel; None if the model has seen none.
    """

    def __init__(self, transform: Transform, stored_size: tuple[int, int], intensity: Intensity | None = None):
        self.transform, self.stored_size, self.intensity = transform, stored_size, intensity

    def __call__(self, image: "Image | Path | str") -> Tensor:
        """Return the input of the network, [C, H, W], for an image or for the path of one."""
        return self.transform.to_inputs(self.to_stored(image), torch.float32)

    def to_stored(self, image: "Image | Path | str") -> Tensor:
        """Return the image in its stored form: uint8 [C, height, width].

        Raises:
            BadImage: The file is not an image that can be decoded.
            UsageError: The model was trained on images that are not greyscale or RGB.
        """
        from PIL import Image

        channels = self.transform.shape[0]
        if channels not in (1, 3):
            raise UsageError(
                f"Expected a model of greyscale or RGB images; found one of images with {channels} channels. "
                "Make the input tensor yourself and call the model with it."
            )
        if isinstance(image, str | Path):
            content, name = Path(image).read_bytes(), str(image)
            self._check_depth(read_header(content, name).is_wide, name)
            pixels = decode(content, name, intensity=self.intensity or NONE)
        elif isinstance(image, Image.Image):
            self._check_depth(image.mode.startswith("I"), "the image")
            pixels = convert_image(image, intensity=self.intensity or NONE)
        else:
            raise UsageError(f"Expected a PIL image or a path; found {type(image).__name__}. Open it with PIL first.")
        height, width = self.stored_size
        found = Image.fromarray(pixels)
        if channels == 1:
            found = found.convert("L")
        if found.size != (width, height):
            found = found.resize((width, height), Image.Resampling.BILINEAR)
        array = np.array(found).reshape(height, width, channels)
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))

    def _check_depth(self, is_wide: bool, name: str) -> None:
        """Raise a `BadImage` for more than 8 bits per channel, if the training data do not say how to scale them."""
        if is_wide and self.intensity is None:
            raise BadImage(name, "format", "more than 8 bits per channel, and the model was trained on 8-bit images")

    def __repr__(self) -> str:
        scaling = f", intensity={self.intensity}" if self.intensity else ""
        return f"ImageTransform({self.transform}, stored_size={self.stored_size}{scaling})"


class ArrayTransform:
    """Preprocessing of a model of tables, time series, audio or text: the same as in its training.

    Args:
        transform: Transform from stored inputs to inputs of the network.
        dataset: Dataset of the training, with the names and the encoding of the columns.
        statistics: Statistics of the training data.
    """

    def __init__(self, transform: Transform, dataset: DomainDataset, statistics: Statistics):
        self.transform, self.dataset, self.statistics = transform, dataset, statistics

    def __call__(self, samples: "Mapping[str, Any] | npt.ArrayLike | Tensor") -> Tensor:
        """Return the inputs of the network, [N, ...].

        Args:
            samples: Columns of a table by name, also as a data frame; or samples [N, ...] in the form of the training
                data.
        """
        return self.transform.prepare(self.to_stored(samples), self.statistics)

    def to_stored(self, samples: Any) -> Tensor:
        """Return samples, as `__call__` takes them, in their stored form.

        Raises:
            DataError: A column is missing, or a value is not a number.
            UsageError: The samples have another shape than those of the training, or columns have different lengths.
        """
        encoding = getattr(self.dataset, "encoding", None)
        has_names = encoding is not None and bool(encoding.names)
        if has_names and hasattr(samples, "columns"):  # a data frame, whose columns may have any order
            samples = {str(name): samples[name] for name in samples.columns}
        if isinstance(samples, Mapping):
            if encoding is None or not has_names:
                raise UsageError(
                    f"Expected samples as an array, for a model of {self.dataset.title}; found columns. Stack them."
                )
            columns = {name: np.asarray(samples[name]) for name in encoding.names if name in samples}
            shapes = {name: column.shape for name, column in columns.items()}
            if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
                found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                raise UsageError(f"Expected columns of one length [N]; found {found}. Give a list for each column.")
            stored = torch.from_numpy(encoding.encode(columns, "the table"))
            warn_of_unknown_categories(encoding, columns, "the table")
            return stored
        try:
            stored = samples if isinstance(samples, Tensor) else torch.tensor(np.asarray(samples))
        except (TypeError, ValueError) as error:
            raise UsageError(f"Expected samples of numbers; found: {error} Convert them to float32.") from error
        shape = self.dataset.input_shape
        if stored.shape[1:] != shape:
            raise UsageError(
                f"Expected samples of shape [N, {', '.join(map(str, shape))}]; found {list(stored.shape)}. Give them "
                "in the form of the training data."
            )
        return stored
