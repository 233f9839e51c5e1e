"""Samples of a trial, and minibatches that are drawn on the device.

All images of a run are in one table. A trial refers to them by sample indices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.data.datasets.base import Domain, split_domain
from pogm.data.transforms.base import Part, Transform
from pogm.engine.image_store import ImageStore

SPLITS = ("in", "out")  # images to train on, and images held back for validation
TRANSFORM, STRATA, HELD_OUT = -2, -3, -4  # streams of a minibatch's key, besides those of its numbers 0, 1, 2, ...


class ImageTable(NamedTuple):
    """All images of all domains, one domain after the other."""

    images: ImageStore  # [N, channels, height, width] uint8
    labels: Tensor  # [N]
    sizes: Tensor  # [N, 2]: height and width before the images were resized to one size


class SamplePool(NamedTuple):
    """Samples of some domains from which minibatches are drawn.

    A stratum is all samples of a domain, or those of one class if classes are balanced.
    """

    indices: Tensor  # [K, L]: sample indices of each domain, padded to the longest domain with the first index
    starts: Tensor  # [K, S]: where each stratum starts in ``indices``
    sizes: Tensor  # [K, S]: number of samples in each stratum
    strata: Tensor  # [K]: number of strata


class SampleIndices(NamedTuple):
    """Sample indices of a trial, by their use."""

    train: SamplePool
    held_out: SamplePool  # of the test domains; only a probe draws from it
    evaluate: Tensor  # [N]: sample indices of every domain and split, in the order of the segments
    trained: Tensor  # [N]: True for samples of training domains


def concatenate_images(domains: list[Domain]) -> Tensor:
    """Return the images of all domains as one tensor.

    This does not copy if they are adjacent in memory, as the images of a memory-mapped file are.
    """
    parts = [domain.images for domain in domains]
    first = parts[0]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    adjacent = all(part.is_contiguous() for part in parts) and ends[:-1] == [p.data_ptr() for p in parts[1:]]
    storage = first.untyped_storage()
    if adjacent and all(part.untyped_storage().data_ptr() == storage.data_ptr() for part in parts):
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    return torch.cat(parts)


def collect_labels_and_sizes(domains: list[Domain]) -> tuple[Tensor, Tensor]:
    """Return the labels [N] and the original sizes [N, 2] of all images."""
    sizes = [
        domain.images.new_tensor(domain.images.shape[-2:], dtype=torch.int64).expand(len(domain.images), 2)
        if domain.sizes is None
        else domain.sizes
        for domain in domains
    ]
    return torch.cat([domain.labels for domain in domains]), torch.cat(sizes)


def build_sample_indices(
    domains: list[Domain],
    test_domains: tuple[int, ...],
    trial_seed: int,
    device: torch.device | str,
    offset: int = 0,
    class_balanced: bool = False,
    names: Sequence[str] | None = None,
) -> tuple[SampleIndices, list[int]]:
    """Split the domains of a trial and return its sample indices.

    Args:
        domains: All domains of the dataset.
        test_domains: Numbers of the held-out domains.
        trial_seed: Seed of the split.
        device: Device of the indices.
        offset: Index of the first image of these domains in the table.
        class_balanced: Draw all classes of a domain equally often.
        names: Names of the domains; they seed the split.

    Returns:
        The sample indices; and the number of samples in each domain and split (the segments).
    """
    names = names or [str(number) for number in range(len(domains))]
    parts, start = [], offset
    for number, domain in enumerate(domains):
        parts.append([start + part for part in split_domain(domain, number, trial_seed, names[number])])
        start += len(domain.labels)

    # Maxima over all domains, so that trials with other held-out domains have tensors of the same shape.
    longest = max(len(inside) for inside, _ in parts)
    most = max(int(domain.labels.max()) + 1 for domain in domains) if class_balanced else 1  # strata
    labels = torch.cat([domain.labels for domain in domains])

    def build_pool(numbers: list[int]) -> SamplePool:
        drawn, counts = [], []
        for number in numbers:
            inside = parts[number][0]
            by_class = class_balanced * labels[inside - offset]  # zeros without balancing: one stratum
            drawn.append(inside[by_class.argsort(stable=True)])
            count = by_class.bincount()
            counts.append(count[count > 0])
        sizes = _stack([_pad(count, most, 0) for count in counts], most)
        return SamplePool(
            indices=_stack([_pad(indices, longest, int(indices[0])) for indices in drawn], longest),
            starts=sizes.cumsum(1) - sizes,
            sizes=sizes,
            strata=torch.tensor([len(count) for count in counts], dtype=torch.int64),
        )

    segments = [len(indices) for pair in parts for indices in pair]
    flags = [torch.full((2,), number not in test_domains) for number in range(len(domains))]
    sample_indices = SampleIndices(
        train=build_pool([number for number in range(len(domains)) if number not in test_domains]),
        held_out=build_pool(list(test_domains)),
        evaluate=torch.cat([indices for pair in parts for indices in pair]),
        trained=torch.cat(flags).repeat_interleave(torch.tensor(segments)),
    )
    on_device: SampleIndices = trees.map_leaves(lambda part: part.to(device), sample_indices)
    return on_device, segments


def _stack(rows: list[Tensor], length: int) -> Tensor:
    """Return the rows as one tensor [rows, length]; there may be none."""
    return torch.stack(rows) if rows else torch.zeros((0, length), dtype=torch.int64)


def _pad(numbers: Tensor, length: int, value: int) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, length - len(numbers)), value=value)


def draw_indices(pool: SamplePool, key: Tensor, batch_size: int) -> Tensor:
    """Draw the sample indices [K, B] of a minibatch: uniformly from each domain, or from each of its classes."""
    share = random.uniform(key, (pool.indices.shape[0], batch_size))  # [K, B]
    stratum = torch.zeros_like(share, dtype=torch.int64)
    if pool.starts.shape[1] > 1:
        which = random.uniform(random.fold(key, STRATA), share.shape)
        stratum = (which * pool.strata[:, None]).long()
    positions = pool.starts.gather(1, stratum) + (share * pool.sizes.gather(1, stratum)).long()
    return pool.indices.gather(1, positions)


def draw_batch(
    table: ImageTable,
    pool: SamplePool,
    key: Tensor,
    batch_size: int,
    transform: Transform,
    dtype: torch.dtype,
    turn: int = 0,
    part: Part | None = None,
) -> Batch:
    """Draw a minibatch, with replacement, and transform its images.

    Args:
        table: All images.
        pool: Samples to draw from.
        key: Random key of the minibatch.
        batch_size: Samples of each domain.
        transform: Transform of the images.
        dtype: Dtype of the transformed images.
        turn: Position of the minibatch in its round.
        part: Domains and samples of this process; None for all.
    """
    indices, sizes, labels = _draw_labels(table.sizes, table.labels, pool, key, batch_size)
    images = table.images.take(indices, turn, part)
    return Batch(_transform(transform, images, sizes, key, dtype, part), labels if part is None else labels[part])


@compiled
def _draw_labels(
    sizes: Tensor, labels: Tensor, pool: SamplePool, key: Tensor, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sample indices of a minibatch, and the sizes and labels of its images."""
    indices = draw_indices(pool, key, batch_size)
    return indices, sizes[indices], labels[indices]


@compiled
def _transform(
    transform: Transform, images: Tensor, sizes: Tensor, key: Tensor, dtype: torch.dtype, part: Part | None
) -> Tensor:
    return transform.for_training(images, sizes, random.fold(key, TRANSFORM), dtype, part)
