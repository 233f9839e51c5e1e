"""A dataset on the device, and minibatches drawn there."""

from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core import random
from pogm.core.batch import Batch
from pogm.datasets.base import Domain
from pogm.datasets.splits import split

SPLITS = ("in", "out")


class Table(NamedTuple):
    """All images of all domains, one after the other."""

    images: Tensor  # [N, channels, height, width] uint8
    labels: Tensor  # [N]


class Rows(NamedTuple):
    """Which rows of the table a trial uses for what."""

    train: Tensor  # [K, longest in part of any domain]: rows of each training domain, filled up with its first
    sizes: Tensor  # [K]: how many of them count
    evaluate: Tensor  # [N]: rows of every domain and split, in the order of ``segments``


def table_of(domains: list[Domain], device: torch.device | str) -> Table:
    """Every domain on the device."""
    images = torch.cat([domain.images for domain in domains])
    labels = torch.cat([domain.labels for domain in domains])
    return Table(images.to(device), labels.to(device))


def rows_of(
    domains: list[Domain],
    test_domains: tuple[int, ...],
    trial_seed: int,
    device: torch.device | str,
    offset: int = 0,
) -> tuple[Rows, list[int]]:
    """The rows of a trial, and how many there are in each domain and split (the segments)."""
    parts, start = [], offset
    for number, domain in enumerate(domains):
        parts.append([start + part for part in split(len(domain.labels), number, trial_seed)])
        start += len(domain.labels)

    trained = [inside for number, (inside, _) in enumerate(parts) if number not in test_domains]
    longest = max(len(inside) for inside, _ in parts)  # of all domains, so that trials that hold out others match
    train = torch.stack([torch.cat([rows, rows[:1].expand(longest - len(rows))]) for rows in trained])
    segments = [len(rows) for pair in parts for rows in pair]
    rows = Rows(train, torch.tensor([len(rows) for rows in trained]), torch.cat([r for pair in parts for r in pair]))
    return Rows(*(part.to(device) for part in rows)), segments


def draw(table: Table, rows: Rows, key: Tensor, batch_size: int, dtype: torch.dtype) -> Batch:
    """The minibatch of a key: B rows of each training domain, uniform and with replacement."""
    share = random.uniform(key, (rows.train.shape[0], batch_size))  # [K, B]
    chosen = rows.train.gather(1, (share * rows.sizes[:, None]).long())
    return Batch(pixels(table.images[chosen], dtype), table.labels[chosen])


def pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    """8-bit images as numbers in [0, 1]."""
    return images.to(dtype) / 255
