"""Base class of all datasets, the training settings that a dataset chooses, and DomainBed's split of a domain."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm.core import hyperparameters
from pogm.core.hyperparameters import Choice, Power, hyper, validate
from pogm.data.transforms.base import Pixels, Transform

HOLDOUT = 0.2  # fraction of a domain in the validation part


class Domain(NamedTuple):
    """Images and labels of one domain."""

    images: Tensor  # [N, channels, height, width] uint8
    labels: Tensor  # [N] int64
    sizes: Tensor | None = None  # [N, 2] heights and widths before images were resized; None if they were not


@dataclass(frozen=True)
class Training:
    """Training settings that depend on the data and not on the algorithm. Defaults: DomainBed's for small images."""

    network: str = hyper("mnist_cnn")  # name of the network, or timm/MODEL
    weights: str = hyper("random")  # initial weights: "random", "pretrained", or "sha256:..." for a file
    freeze_bn: bool = hyper(True)  # keep the running statistics of batch norm fixed
    dropout: float = hyper(
        0.0, Choice(0.0, 0.1, 0.5), least=0, most=0.99, draw_as="resnet_dropout"
    )  # rate, on features
    nonlinear_classifier: bool = hyper(False)  # use a classifier of three layers instead of one
    lr: float = hyper(1e-3, Power(10, -4.5, -2.5), above=0)  # learning rate
    weight_decay: float = hyper(0.0, least=0)  # L2 penalty of the optimizer
    batch_size: int = hyper(64, Power(2, 3, 9, integer=True), least=1)  # images of each domain in a minibatch
    class_balanced: bool = hyper(False)  # sample all classes of a domain equally often

    def __post_init__(self) -> None:
        validate(self)

    def transform(self, input_shape: tuple[int, int, int]) -> Transform:
        """Return the transform from stored images to inputs of this shape."""
        return Pixels(input_shape)


@dataclass(frozen=True)
class DomainDataset:
    """Images of the same classes in several domains. A subclass sets the class attributes and implements `load`."""

    domains: ClassVar[tuple[str, ...]]  # names of the domains
    num_classes: ClassVar[int]
    input_shape: ClassVar[tuple[int, int, int]]  # channels, height, width
    training: ClassVar[Training] = Training()  # default training settings
    steps: ClassVar[int] = 5001  # minibatches of each domain
    evaluate_every: ClassVar[int] = 100  # minibatches between two evaluations
    large: ClassVar[bool] = False  # photographs rather than digits; some methods have other defaults for them
    uses_seed: ClassVar[bool] = True  # True if the data depend on the seed
    embedded: ClassVar[bool] = False  # True if the data come with the installation

    def __post_init__(self) -> None:
        validate(self)

    @property
    def title(self) -> str:
        """Name of the dataset in tables."""
        return type(self).__name__

    @property
    def seed_name(self) -> str:
        """Text that stands for the dataset in the seeds of a sweep."""
        return self.title

    def to_json(self) -> dict[str, Any]:
        """Return the name and the settings of the dataset as JSON values. The path of the data is not included."""
        return {"name": type(self).__name__, **hyperparameters.to_json(self)}

    def prepare(self, root: Path | None, progress: Any) -> None:
        """Prepare the data once, so that `load` is fast afterwards.

        Args:
            root: The data folder.
            progress: Function that shows the progress, see `pogm.data.images.parallel.Progress`.
        """

    def describe_data(self, root: Path | None) -> dict[str, Any]:
        """Return facts about the data that a run should record, as JSON values."""
        return {}

    def class_names(self, root: Path | None) -> tuple[str, ...]:
        """Return the names of the classes, in the order of the labels; by default their numbers."""
        return tuple(map(str, range(self.num_classes)))

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Raise a `DataError` if the data cannot be used with these domains held out."""

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains, in the order of `domains`.

        Args:
            root: The data folder.
            seed: Seed of the random parts of the data, such as label noise.
        """
        raise NotImplementedError


def partition(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle the indices 0 … count - 1 and split them into disjoint parts of nearly equal size."""
    order = torch.randperm(count, generator=generator)
    return [order[i::parts] for i in range(parts)]


def seed_hash(*parts: Any) -> int:
    """Return a seed computed from ints, strings and lists; it is the same on every machine."""
    return int(hashlib.md5(str(parts).encode()).hexdigest(), 16) % 2**31


def split(count: int, domain: int, trial_seed: int, holdout: float = HOLDOUT, name: str = "") -> tuple[Tensor, Tensor]:
    """Split the images of a domain at random.

    Args:
        count: Number of images.
        domain: Number of the domain.
        trial_seed: Seed of the split.
        holdout: Fraction of the images in the *out* part.
        name: Name of the domain, for the error.

    Returns:
        Indices of the *in* part, used for training, and of the *out* part, used for validation.

    Raises:
        DataError: If one of the parts would be empty.
    """
    order = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(count * holdout)
    if held_out == 0 or held_out == count:
        raise DataError(
            f"Expected domain {name or domain} to leave both a training and a validation part; found {count} images, "
            f"of which {held_out} would be held out. Give it more images."
        )
    return torch.tensor(order[held_out:]), torch.tensor(order[:held_out])
