"""Base class of all datasets, the training settings that a dataset chooses, and DomainBed's split of a domain."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm.core import hyperparameters
from pogm.core.hyperparameters import MOST_SAMPLES, Choice, Power, hyper, validate
from pogm.core.plugins import registered_name
from pogm.data.transforms.base import Pixels, Transform

HOLDOUT = 0.2  # fraction of a domain in the validation part
LEAST_SAMPLES = 10  # of a domain, if some of its samples are chosen; two of them are for validation
TRAIN, VAL, TEST = range(3)  # given splits


class Domain(NamedTuple):
    """Inputs and labels of one domain."""

    inputs: Tensor  # [N, ...] stored inputs, of any shape and dtype; images are [N, channels, height, width] uint8
    labels: Tensor  # [N] int64 class indices, or [N] float32 targets of a regression
    sizes: Tensor | None = None  # [N, 2] heights and widths before images were resized; None if they were not
    groups: Tensor | None = None  # [N] number of the group of each sample; a group is not divided by a split
    splits: Tensor | None = None  # [N] given split of each sample: TRAIN, VAL or TEST
    stratified: bool = False  # keep the proportions of the classes in a split


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
    batch_size: int = hyper(
        64, Power(2, 3, 9, integer=True), least=1, most=MOST_SAMPLES
    )  # samples of each domain in a minibatch
    class_balanced: bool = hyper(False)  # sample all classes of a domain equally often

    def __post_init__(self) -> None:
        validate(self)

    def transform(self, input_shape: tuple[int, ...]) -> Transform:
        """Return the transform from stored images to inputs of this shape."""
        return Pixels(input_shape)


@dataclass(frozen=True)
class DomainDataset:
    """Samples of the same task in several domains. A subclass sets the class attributes and implements `load`."""

    domains: ClassVar[tuple[str, ...]]  # names of the domains
    num_classes: ClassVar[int]  # number of outputs of the network; 1 for a regression
    task: ClassVar[str] = "classification"  # or "regression"; it determines loss, scores and model selection
    input_shape: ClassVar[tuple[int, ...]]  # of one sample; images: channels, height, width
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
        return registered_name(type(self))

    @property
    def has_equal_splits(self) -> bool:
        """True if the splits of a domain have the same sizes for all trial seeds."""
        return True

    @property
    def seed_name(self) -> str:
        """Text that stands for the dataset in the seeds of a sweep."""
        return self.title

    def to_json(self) -> dict[str, Any]:
        """Return the name and the settings of the dataset as JSON values. The path of the data is not included."""
        return {"name": registered_name(type(self)), **hyperparameters.to_json(self)}

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

    def transform(self, training: Training) -> Transform:
        """Return the transform from stored inputs to inputs of the network, with these training settings."""
        return training.transform(self.input_shape)

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Raise a `DataError` if the data cannot be used with these domains held out."""

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains, in the order of `domains`.

        Args:
            root: The data folder.
            seed: Seed of the random parts of the data, such as label noise.
        """
        raise NotImplementedError


def check_loaded(dataset: DomainDataset, domains: Sequence[Domain]) -> None:
    """Check the form of the domains that `load` returned, which a dataset of a plug-in may get wrong.

    Raises:
        DataError: The number of domains, or the type, shape or values of a tensor are not those of the dataset.
    """

    def error(expected: str, found: str) -> DataError:
        return DataError(f"Expected {expected} from load of {dataset.title}; found {found}. Correct the dataset.")

    if len(domains) != len(dataset.domains) or not all(isinstance(domain, Domain) for domain in domains):
        kinds = ", ".join(dict.fromkeys(type(domain).__name__ for domain in domains)) or "nothing"
        raise error(f"a Domain for each of {', '.join(dataset.domains)}", f"{len(domains)} of the type {kinds}")
    is_regression = dataset.task == "regression"
    wanted = torch.float32 if is_regression else torch.int64
    first = domains[0].inputs
    for name, (x, y, *_) in zip(dataset.domains, domains, strict=True):
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise error("tensors", f"{type(x).__name__} and {type(y).__name__} in {name}")
        if y.ndim != 1 or x.shape[:1] != y.shape or x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            shapes = f"inputs {x.dtype} {list(x.shape)} and labels {list(y.shape)} in {name}"
            raise error("inputs [N, ...] of one shape and type, and labels [N],", shapes)
        if y.dtype != wanted:
            raise error(f"labels of {wanted}", f"{y.dtype} in {name}")
        if not is_regression and len(y) and not 0 <= int(y.min()) <= int(y.max()) < dataset.num_classes:
            span = f"{int(y.min())} to {int(y.max())} in {name}"
            raise error(f"labels from 0 to {dataset.num_classes - 1}", span)


def find_unseen(domains: Sequence[Domain], test_domains: Sequence[int]) -> dict[int, list[int]]:
    """Return the classes that no training domain has, for each test domain that has some of them."""
    classes = [set(domain.labels.tolist()) for domain in domains]
    seen = set().union(*(found for number, found in enumerate(classes) if number not in test_domains))
    return {number: sorted(classes[number] - seen) for number in test_domains if classes[number] - seen}


def partition(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle the indices 0 … count - 1 and split them into disjoint parts of nearly equal size."""
    order = torch.randperm(count, generator=generator)
    return [order[i::parts] for i in range(parts)]


def seed_hash(*parts: Any) -> int:
    """Return a seed computed from ints, strings and lists; it is the same on every machine."""
    return int(hashlib.md5(str(parts).encode()).hexdigest(), 16) % 2**31


def split(count: int, domain: int, trial_seed: int, name: str = "", is_trained: bool = True) -> tuple[Tensor, Tensor]:
    """Split the images of a domain at random.

    Args:
        count: Number of images.
        domain: Number of the domain.
        trial_seed: Seed of the split.
        name: Name of the domain, for the error.
        is_trained: The domain is used for training. The *out* part of a held-out domain has at least one image.

    Returns:
        Indices of the *in* part, used for training, and of the *out* part, used for validation.

    Raises:
        DataError: If one of the parts would be empty.
    """
    order = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(count * HOLDOUT) if is_trained else max(int(count * HOLDOUT), 1)
    if held_out == 0 or held_out == count:
        least, advice = (math.ceil(1 / HOLDOUT), "hold it out, or remove it") if is_trained else (2, "or remove it")
        raise DataError(
            f"Expected domain {name or domain} to leave both a training and a validation part; found {count} samples, "
            f"of which {held_out} would be held out. Give it {least} or more samples, {advice}."
        )
    return torch.tensor(order[held_out:]), torch.tensor(order[:held_out])


def split_domain(
    domain: Domain,
    number: int,
    trial_seed: int,
    name: str = "",
    is_trained: bool = True,
    samples: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Split the images of a domain: as given, or at random with its groups and classes respected.

    If the images have given splits, the training images are the *in* part and the validation images the *out* part.
    Test images are in neither part. If a domain has no validation images, they are drawn from its training images. If
    all images of a domain have the same split, as in WILDS, it has no meaning within the domain and is ignored.

    Args:
        domain: The domain.
        number: Number of the domain.
        trial_seed: Seed of the split.
        name: Name of the domain, for the error.
        is_trained: The domain is used for training. A held-out domain may be smaller, and its only group is divided.
        samples: Largest number of samples of a training domain in both parts together; None for all.

    Returns:
        Indices of the *in* part, used for training, and of the *out* part, used for validation.

    Raises:
        DataError: If one of the parts would be empty.
    """
    inside, outside = _split_all(domain, number, trial_seed, name, is_trained)
    if samples is None or not is_trained or len(inside) + len(outside) <= samples:
        return inside, outside
    random = np.random.RandomState(seed_hash("samples", trial_seed, number))
    orders = [torch.from_numpy(random.permutation(len(part))) for part in (inside, outside)]
    held_out = int(samples * HOLDOUT)
    return inside[orders[0][: samples - held_out]], outside[orders[1][:held_out]]


def _split_all(domain: Domain, number: int, trial_seed: int, name: str, is_trained: bool) -> tuple[Tensor, Tensor]:
    """Split all images of a domain, see `split_domain`."""
    used = torch.arange(len(domain.labels))
    if domain.splits is not None:
        parts = [torch.nonzero(domain.splits == kind).flatten() for kind in (TRAIN, VAL)]
        if all(map(len, parts)):
            return parts[0], parts[1]
        if domain.splits.min() < domain.splits.max():  # test images, and either training or validation images
            used = torch.cat(parts)
    labels = domain.labels[used] if domain.stratified else torch.zeros(len(used), dtype=torch.int64)
    groups = None if domain.groups is None else domain.groups[used]
    if groups is not None and (is_trained or bool((groups != groups[0]).any())):
        inside, outside = _split_groups(labels, groups, number, trial_seed, name)
    elif domain.stratified:
        inside, outside = _split_classes(labels, number, trial_seed, name, is_trained)
    else:
        inside, outside = split(len(used), number, trial_seed, name, is_trained)
    return used[inside], used[outside]


def _split_classes(labels: Tensor, domain: int, trial_seed: int, name: str, is_trained: bool) -> tuple[Tensor, Tensor]:
    """Split so that each class has its share of the *out* part, up to one image.

    The *out* part has as many images as without classes. The classes with the largest remainders get one image more.
    """
    inside, outside = split(len(labels), domain, trial_seed, name, is_trained)
    order = torch.cat([outside, inside])
    shares = labels.bincount() * HOLDOUT
    counts = shares.floor().long()
    missing = len(outside) - int(counts.sum())
    counts[(shares - counts).argsort(descending=True, stable=True)[:missing]] += 1
    ranks = torch.zeros(len(labels), dtype=torch.int64)  # position of each image within its class, in random order
    for label in range(len(counts)):
        members = order[labels[order] == label]
        ranks[members] = torch.arange(len(members))
    is_outside = (ranks < counts[labels])[order]
    return order[~is_outside], order[is_outside]


def _split_groups(labels: Tensor, groups: Tensor, domain: int, trial_seed: int, name: str) -> tuple[Tensor, Tensor]:
    """Split so that no group is divided.

    Groups are taken in random order. A group goes to the *out* part if this brings the number of images of each class
    nearer to its share.
    """
    _, groups = torch.unique(groups, return_inverse=True)
    table = torch.zeros(int(groups.max()) + 1, int(labels.max()) + 1, dtype=torch.float64)  # images per group and class
    table.index_put_((groups, labels), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    target, held_out = table.sum(0) * HOLDOUT, torch.zeros(len(table), dtype=torch.bool)
    order = list(range(len(table)))
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    if len(order) < 2:
        raise DataError(
            f"Expected two or more groups in domain {name or domain}, because a group is not divided; found "
            f"{len(order)}. Leave out the column of the groups, or add images of other groups."
        )
    left = target.clone()  # share of the *out* part that is not filled yet
    for group in order:
        if (left - table[group]).square().sum() < left.square().sum():
            left -= table[group]
            held_out[group] = True
    if not held_out.any():  # every group is larger than twice the share
        held_out[order[int(table[order].sum(1).argmin())]] = True
    is_outside = held_out[groups]
    return torch.nonzero(~is_outside).flatten(), torch.nonzero(is_outside).flatten()
