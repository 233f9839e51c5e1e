"""A dataset: four facts and ``load``."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pogm.core.hyperparameters import Choice, Power, hyper, validate
from pogm.data.transforms.base import Transform
from pogm.data.transforms.pixels import Pixels


class Domain(NamedTuple):
    """The images and labels of one domain."""

    images: Tensor  # [N, channels, height, width] uint8
    labels: Tensor  # [N] int64
    sizes: Tensor | None = None  # [N, 2] height and width before all were made one size; None: as the images are


@dataclass(frozen=True)
class Training:
    """What the data decides, whatever the algorithm: DomainBed's settings for small images."""

    network: str = hyper("mnist_cnn")
    weights: str = hyper("random")  # or "pretrained", or "sha256:..." for a file with that content
    freeze_bn: bool = hyper(True)  # keep the running statistics of batch norm
    dropout: float = hyper(0.0, Choice(0.0, 0.1, 0.5), least=0, most=0.99, draw_as="resnet_dropout")  # of features
    nonlinear_classifier: bool = hyper(False)  # three layers instead of one
    lr: float = hyper(1e-3, Power(10, -4.5, -2.5), above=0)
    weight_decay: float = hyper(0.0, least=0)
    batch_size: int = hyper(64, Power(2, 3, 9, integer=True), least=1)  # of each domain
    class_balanced: bool = hyper(False)  # draw every class of a domain equally often

    def __post_init__(self) -> None:
        validate(self)

    def transform(self, input_shape: tuple[int, int, int]) -> Transform:
        """How stored images become inputs of that shape."""
        return Pixels(input_shape)


@dataclass(frozen=True)
class DomainDataset:
    """Images of the same things, seen in several domains. A subclass states the facts and loads."""

    domains: ClassVar[tuple[str, ...]]
    num_classes: ClassVar[int]
    input_shape: ClassVar[tuple[int, int, int]]
    training: ClassVar[Training] = Training()
    steps: ClassVar[int] = 5001  # minibatches of each domain
    evaluate_every: ClassVar[int] = 100
    large: ClassVar[bool] = False  # photographs rather than digits: some methods have other defaults for them
    drawn: ClassVar[bool] = True  # whether the seed decides anything about the data
    embedded: ClassVar[bool] = False  # whether it comes with the installation

    def __post_init__(self) -> None:
        validate(self)

    @property
    def title(self) -> str:
        """Its name in a table."""
        return type(self).__name__

    @property
    def seed_name(self) -> str:
        """What stands for it in the seeds of a sweep."""
        return self.title

    def to_json(self) -> dict[str, Any]:
        """What it is, as plain JSON values; where it lies is no part of that."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}

    def prepare(self, root: Path | None, progress: Any) -> None:
        """Make ready, once and for all, what loading needs; ``progress`` shows how far it is."""

    def found(self, root: Path | None) -> dict[str, Any]:
        """What a record should say about the data that were there, as plain JSON values."""
        return {}

    def check(self, domains: list[Domain], test_domains: tuple[int, ...]) -> None:
        """Refuse data that cannot be meant for a run with those domains held out."""

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Every domain, in order. ``seed`` decides what a construction draws at random."""
        raise NotImplementedError


def shares(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Deal ``count`` items out to ``parts`` domains after one shuffle: no item is in two of them."""
    order = torch.randperm(count, generator=generator)
    return [order[i::parts] for i in range(parts)]
