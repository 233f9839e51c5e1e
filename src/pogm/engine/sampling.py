"""A dataset on the device, and minibatches drawn there."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.data.datasets.base import Domain
from pogm.data.datasets.splits import split
from pogm.data.transforms.base import Part, Transform
from pogm.engine.image_store import Store

SPLITS = ("in", "out")
TRANSFORM, STRATA, HELD_OUT = -2, -3, -4  # streams beside the numbers 0, 1, 2, ... of a minibatch's key


class ImageTable(NamedTuple):
    """All images of all domains, one after the other."""

    images: Store  # [N, channels, height, width] uint8
    labels: Tensor  # [N]
    sizes: Tensor  # [N, 2]: height and width before all were made one size


class SamplePool(NamedTuple):
    """The rows of some domains that minibatches are drawn from."""

    rows: Tensor  # [K, longest in part of any domain]: rows of each domain, filled up with its first
    starts: Tensor  # [K, S]: where each stratum begins; one for all, or one for every class
    sizes: Tensor  # [K, S]: how many rows it has
    strata: Tensor  # [K]: how many there are


class SampleIndices(NamedTuple):
    """Which rows of the table a trial uses for what."""

    train: SamplePool
    held_out: SamplePool  # of the test domains, for a probe alone
    evaluate: Tensor  # [N]: rows of every domain and split, in the order of ``segments``
    trained: Tensor  # [N]: whether they are a training domain's


def joined(domains: list[Domain]) -> Tensor:
    """All images as one tensor; without a copy where they are neighbours in memory, as those of a mapped file are."""
    parts = [domain.images for domain in domains]
    first = parts[0]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    neighbours = all(part.is_contiguous() for part in parts) and ends[:-1] == [p.data_ptr() for p in parts[1:]]
    storage = first.untyped_storage()
    if neighbours and all(part.untyped_storage().data_ptr() == storage.data_ptr() for part in parts):
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    return torch.cat(parts)


def facts(domains: list[Domain]) -> tuple[Tensor, Tensor]:
    """The labels and original sizes of all images."""
    sizes = [
        domain.images.new_tensor(domain.images.shape[-2:], dtype=torch.int64).expand(len(domain.images), 2)
        if domain.sizes is None
        else domain.sizes
        for domain in domains
    ]
    return torch.cat([domain.labels for domain in domains]), torch.cat(sizes)


def rows_of(
    domains: list[Domain],
    test_domains: tuple[int, ...],
    trial_seed: int,
    device: torch.device | str,
    offset: int = 0,
    class_balanced: bool = False,
    names: Sequence[str] | None = None,
) -> tuple[SampleIndices, list[int]]:
    """The rows of a trial, and how many there are in each domain and split (the segments)."""
    names = names or [str(number) for number in range(len(domains))]
    parts, start = [], offset
    for number, domain in enumerate(domains):
        parts.append([start + part for part in split(len(domain.labels), number, trial_seed, name=names[number])])
        start += len(domain.labels)

    longest = max(len(inside) for inside, _ in parts)  # of all domains, so that trials that hold out others match
    most = max(int(domain.labels.max()) + 1 for domain in domains) if class_balanced else 1  # strata, likewise
    labels = torch.cat([domain.labels for domain in domains])

    def pool(numbers: list[int]) -> SamplePool:
        drawn, counts = [], []
        for number in numbers:
            inside = parts[number][0]
            by_class = class_balanced * labels[inside - offset]  # all alike if it does not matter
            drawn.append(inside[by_class.argsort(stable=True)])
            count = by_class.bincount()
            counts.append(count[count > 0])
        sizes = torch.stack([_filled(count, most, 0) for count in counts])
        return SamplePool(
            rows=torch.stack([_filled(rows, longest, int(rows[0])) for rows in drawn]),
            starts=sizes.cumsum(1) - sizes,
            sizes=sizes,
            strata=torch.tensor([len(count) for count in counts]),
        )

    segments = [len(rows) for pair in parts for rows in pair]
    flags = [torch.full((2,), number not in test_domains) for number in range(len(domains))]
    rows = SampleIndices(
        train=pool([number for number in range(len(domains)) if number not in test_domains]),
        held_out=pool(list(test_domains)),
        evaluate=torch.cat([rows for pair in parts for rows in pair]),
        trained=torch.cat(flags).repeat_interleave(torch.tensor(segments)),
    )
    placed: SampleIndices = trees.map_leaves(lambda part: part.to(device), rows)
    return placed, segments


def _filled(numbers: Tensor, length: int, value: int) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, length - len(numbers)), value=value)


def chosen(pool: SamplePool, key: Tensor, batch_size: int) -> Tensor:
    """The rows [K, B] of a key's minibatch: uniform in each domain, or in each of its classes."""
    share = random.uniform(key, (pool.rows.shape[0], batch_size))  # [K, B]
    stratum = torch.zeros_like(share, dtype=torch.int64)
    if pool.starts.shape[1] > 1:
        which = random.uniform(random.fold(key, STRATA), share.shape)
        stratum = (which * pool.strata[:, None]).long()
    places = pool.starts.gather(1, stratum) + (share * pool.sizes.gather(1, stratum)).long()
    return pool.rows.gather(1, places)


def draw(
    table: ImageTable,
    pool: SamplePool,
    key: Tensor,
    batch_size: int,
    transform: Transform,
    dtype: torch.dtype,
    turn: int = 0,
    part: Part | None = None,
) -> Batch:
    """The minibatch of a key, or a part of it: B rows of each domain, with replacement; ``turn`` is its number."""
    these, sizes, labels = _chosen(table.sizes, table.labels, pool, key, batch_size)
    images = table.images.take(these, turn, part)
    return Batch(_transformed(transform, images, sizes, key, dtype, part), labels if part is None else labels[part])


@compiled
def _chosen(
    sizes: Tensor, labels: Tensor, pool: SamplePool, key: Tensor, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of a minibatch, and what is known of them."""
    these = chosen(pool, key, batch_size)
    return these, sizes[these], labels[these]


@compiled
def _transformed(
    transform: Transform, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None
) -> Tensor:
    return transform.for_training(images, sizes, random.fold(key, TRANSFORM), dtype, part)
