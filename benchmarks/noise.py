"""Tasks on noise in the shape of real data, so that benchmarks of speed need no data."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from pogm.algorithms.base import Algorithm
from pogm.data.datasets.base import Domain, DomainDataset, Training
from pogm.data.datasets.colored_mnist import ColoredMNIST
from pogm.data.datasets.pacs import PACS
from pogm.engine.task import Task

DISTINCT = 1000  # different images; they are repeated if more are needed


@cache
def domains(shape: tuple[int, int, int], counts: tuple[int, ...], classes: int) -> list[Domain]:
    """Return domains of random images; equal arguments give the same list."""
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(0, 256, (min(max(counts), DISTINCT), *shape), dtype=torch.uint8, generator=generator)
    return [Domain(some[torch.arange(count) % len(some)], torch.arange(count) % classes) for count in counts]


def dataset(K: int, shape: tuple[int, int, int], classes: int = 10) -> DomainDataset:
    """Return a dataset with K training domains and one held-out domain."""
    return _kind(K, shape, classes)()


@cache
def _kind(K: int, shape: tuple[int, int, int], classes: int) -> type[DomainDataset]:
    names = tuple(map(str, range(K + 1)))
    return type("Noise", (DomainDataset,), {"domains": names, "num_classes": classes, "input_shape": shape})


def task(
    algorithm: Algorithm,
    *,
    K: int = 2,
    shape: tuple[int, int, int] = (2, 28, 28),
    network: str = "mnist_cnn",
    batch_size: int = 16,
    images: int = 300,
    seed: int = 0,
    lr: float = 1e-3,
    precision: str = "fp32",
) -> Task:
    """Return a task with any network and shape of images; ``images`` counts all domains together."""
    data = dataset(K, shape)
    return Task(
        algorithm=algorithm,
        dataset=data,
        load=lambda: domains(shape, (images // (K + 1),) * (K + 1), data.num_classes),
        training=Training(network=network, batch_size=batch_size, lr=lr),
        test_domains=(K,),
        seed=seed,
        precision=precision,
    )


def colored_mnist(
    algorithm: Algorithm, *, data: Path | None, images: int, batch_size: int, seed: int, lr: float, precision: str
) -> Task:
    """Return a task on ColoredMNIST with two training domains: MNIST if the folder has it, else noise."""
    known = ColoredMNIST()
    counts = tuple(len(range(number, images, 3)) for number in range(3))

    def load() -> list[Domain]:
        return _digits(data) if has_mnist(data) else domains(known.input_shape, counts, known.num_classes)

    return Task(
        algorithm=algorithm,
        dataset=known,
        load=load,
        training=replace(known.training, batch_size=batch_size, lr=lr),
        test_domains=(2,),
        seed=seed,
        precision=precision,
    )


def has_mnist(data: Path | None) -> bool:
    """Return True if the folder contains MNIST."""
    return data is not None and (data / "MNIST" / "raw").is_dir()


@cache
def _digits(data: Path) -> list[Domain]:
    return ColoredMNIST().load(data, 0)


def pacs(
    algorithm: Algorithm, *, network: str, batch_size: int, stored: int, image_size: int, images: int, precision: str
) -> Task:
    """Return a task on noise in the shape of PACS, with three training domains and the transform of PACS."""
    known = PACS()
    return Task(
        algorithm=algorithm,
        dataset=known,
        load=lambda: domains((3, stored, stored), (images,) * 4, known.num_classes),
        training=replace(
            known.training, network=network, weights="random", batch_size=batch_size, image_size=image_size
        ),
        test_domains=(3,),
        precision=precision,
    )
