"""Samples of a trial, and minibatches that are drawn on the device.

All inputs of a run are in one table. A trial refers to them by sample indices.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import any_length, compiled
from pogm.data.datasets.base import Domain, split_domain
from pogm.data.transforms.base import Part, Statistics, Transform
from pogm.engine.input_store import InputStore

SPLITS = ("in", "out")  # samples to train on, and samples held back for validation
TARGET_MEAN, TARGET_SCALE = "target_mean", "target_scale"  # names of statistics of the targets of a regression
TRANSFORM, STRATA, HELD_OUT = -2, -3, -4  # streams of a minibatch's key, besides those of its numbers 0, 1, 2, ...


class SampleTable(NamedTuple):
    """All samples of all domains, one domain after the other."""

    inputs: InputStore  # [N, ...]: stored inputs; images are [N, channels, height, width] uint8
    labels: Tensor  # [N]
    sizes: Tensor  # [N, 2]: height and width before images were resized to one size; 0 for other inputs


class SamplePool(NamedTuple):
    """Samples of some domains from which minibatches are drawn.

    A stratum is all samples of a domain, or those of one class if classes are balanced.
    """

    indices: Tensor  # [K, L]: sample indices of each domain, padded to the longest domain with the first index
    starts: Tensor  # [K, S]: where each stratum starts in ``indices``
    sizes: Tensor  # [K, S]: number of samples in each stratum
    strata: Tensor  # [K]: number of strata


class SampleIndices(NamedTuple):
    """Sample indices of a trial, by their use, and the statistics of its training inputs."""

    train: SamplePool
    held_out: SamplePool  # of the test domains; only a probe draws from it
    evaluate: Tensor  # [N]: sample indices of every domain and split, in the order of the segments
    trained: Tensor  # [N]: True for samples of training domains
    statistics: Statistics = {}  # noqa: RUF012  (not changed)  # of the training samples, see `Transform.fit`


def concatenate_inputs(domains: list[Domain]) -> Tensor:
    """Return the stored inputs of all domains as one tensor.

    This does not copy if they are adjacent in memory, as the images of a memory-mapped file are.
    """
    parts = [domain.inputs for domain in domains]
    first = parts[0]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    adjacent = all(part.is_contiguous() for part in parts) and ends[:-1] == [p.data_ptr() for p in parts[1:]]
    storage = first.untyped_storage()
    if adjacent and all(part.untyped_storage().data_ptr() == storage.data_ptr() for part in parts):
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    return torch.cat(parts)


def collect_labels_and_sizes(domains: list[Domain]) -> tuple[Tensor, Tensor]:
    """Return the labels [N] and the original sizes [N, 2] of all samples; inputs that are not images have size 0."""
    sizes = [
        torch.tensor(domain.inputs.shape[-2:] if domain.inputs.ndim == 4 else (0, 0)).expand(len(domain.inputs), 2)
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
    transform: Transform | None = None,
    samples: int | None = None,
) -> tuple[SampleIndices, list[int]]:
    """Split the domains of a trial and return its sample indices.

    Args:
        domains: All domains of the dataset.
        test_domains: Numbers of the held-out domains.
        trial_seed: Seed of the split.
        device: Device of the indices.
        offset: Index of the first sample of these domains in the table.
        class_balanced: Draw all classes of a domain equally often.
        names: Names of the domains, for errors.
        transform: Transform whose statistics are fitted on the samples to train on; None for no statistics.
        samples: Largest number of samples of a training domain, for training and validation together; None for all.

    Returns:
        The sample indices; and the number of samples in each domain and split (the segments).
    """
    names = names or [str(number) for number in range(len(domains))]
    trained_on = [number for number in range(len(domains)) if number not in test_domains]
    local = [
        split_domain(domain, number, trial_seed, names[number], number in trained_on, samples)
        for number, domain in enumerate(domains)
    ]
    starts = accumulate((len(domain.labels) for domain in domains), initial=offset)
    parts = [[start + part for part in pair] for start, pair in zip(starts, local, strict=False)]
    statistics: Statistics = {}
    if transform is not None and transform.is_fitted:
        statistics = transform.fit([domains[number].inputs[local[number][0]] for number in trained_on])
    if domains[0].labels.is_floating_point():
        statistics = {**statistics, **fit_targets([domains[n].labels[local[n][0]] for n in trained_on])}

    # Maxima over all domains, so that trials with other held-out domains have tensors of the same shape.
    longest = max(len(inside) for inside, _ in parts)
    most = max(int(domain.labels.max()) + 1 for domain in domains) if class_balanced else 1  # strata
    labels = torch.cat([domain.labels for domain in domains]).long()

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
        train=build_pool(trained_on),
        held_out=build_pool(list(test_domains)),
        evaluate=torch.cat([indices for pair in parts for indices in pair]),
        trained=torch.cat(flags).repeat_interleave(torch.tensor(segments)),
        statistics=statistics,
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
    starts, sizes = pool.starts, pool.sizes  # [K, 1]: one stratum
    if starts.shape[1] > 1:
        which = random.uniform(random.fold(key, STRATA), share.shape)
        stratum = (which * pool.strata[:, None]).long()
        starts, sizes = starts.gather(1, stratum), sizes.gather(1, stratum)
    return pool.indices.gather(1, starts + (share * sizes).long())


def fit_targets(targets: Sequence[Tensor]) -> Statistics:
    """Return the mean and the inverse standard deviation of the targets of a regression, given for each domain."""
    pooled = torch.cat(list(targets)).double()
    deviation = pooled.std(correction=0)
    scale = torch.where(deviation > 0, 1 / deviation, 1)
    return {TARGET_MEAN: pooled.mean().float(), TARGET_SCALE: scale.float()}


def normalise_targets(y: Tensor, statistics: Statistics) -> Tensor:
    """Return targets of a regression in units of the standard deviation of training targets; classes are unchanged."""
    return (y - statistics[TARGET_MEAN]) * statistics[TARGET_SCALE] if TARGET_MEAN in statistics else y


def denormalise_outputs(outputs: Tensor, statistics: Statistics) -> Tensor:
    """Return outputs of a regression in the unit of the targets; logits are unchanged."""
    return outputs / statistics[TARGET_SCALE] + statistics[TARGET_MEAN] if TARGET_MEAN in statistics else outputs


def draw_batch(
    table: SampleTable,
    pool: SamplePool,
    key: Tensor,
    batch_size: int,
    transform: Transform,
    dtype: torch.dtype,
    turn: int = 0,
    part: Part | None = None,
    statistics: Statistics | None = None,
) -> Batch:
    """Draw a minibatch, with replacement, and transform its inputs.

    Args:
        table: All samples.
        pool: Samples to draw from.
        key: Random key of the minibatch.
        batch_size: Samples of each domain.
        transform: Transform of the inputs.
        dtype: Dtype of the transformed inputs.
        turn: Position of the minibatch in its round.
        part: Domains and samples of this process; None for all.
        statistics: Statistics of the training samples, for transforms that use them.
    """
    slots = any_length(torch.arange(batch_size, device=key.device), 0)
    indices, sizes, labels = _draw_labels(table.sizes, table.labels, pool, key, slots)
    stored = any_length(table.inputs.take(indices, turn, part), 1)
    x = _transform(transform, stored, any_length(sizes, 1), key, dtype, part, statistics or {})
    labels = normalise_targets(labels, statistics or {})
    return Batch(x, labels if part is None else labels[part])


@compiled
def _draw_labels(
    sizes: Tensor, labels: Tensor, pool: SamplePool, key: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sample indices of a minibatch, and the sizes and labels of its samples.

    The minibatch size is given as the length of ``slots``, because the compiler treats integers as constants.
    """
    indices = draw_indices(pool, key, len(slots))
    return indices, sizes[indices], labels[indices]


@compiled
def _transform(
    transform: Transform,
    stored: Tensor,
    sizes: Tensor,
    key: Tensor,
    dtype: torch.dtype,
    part: Part | None,
    statistics: Statistics,
) -> Tensor:
    x = transform.for_training(stored, sizes, random.fold(key, TRANSFORM), dtype, part)
    return transform.normalise(x, statistics)
