"""Minibatches from a user's data: one per domain, by name or in a list, or one minibatch with domain labels."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.trees import Tree


class Samples(NamedTuple):
    """Inputs and targets of some samples of one domain."""

    x: Tree  # [N, ...], or a dictionary or tuple of such tensors
    y: Tensor  # [N, ...]


def split_domains(batches: Any, labels: Any, target: str) -> dict[Hashable, Samples]:
    """Return the samples of each domain by name. Domains without samples are left out.

    Args:
        batches: One minibatch per domain, as a list (names 0, 1, ...) or by name; with ``labels``, one minibatch.
            A minibatch is (x, y), (x, y, meta), or a dictionary that contains the targets.
        labels: Domain of every sample, or None.
        target: Key of the targets in dictionaries.
    """
    if labels is not None:
        return _split_by_label(_read_samples(batches, target, "the minibatch"), labels)
    if isinstance(batches, Batch):
        return {k: Samples(trees.index(batches.x, k), batches.y[k]) for k in range(len(batches.y))}
    if isinstance(batches, Mapping):
        if target in batches:
            raise UsageError(
                "Expected minibatches by the name of their domain; found one dictionary with the key "
                f"{target!r}, which is one minibatch. Pass the domain of every sample: step(batch, domains=labels)."
            )
        named: Iterable[tuple[Hashable, Any]] = batches.items()
    elif isinstance(batches, Sequence) and not isinstance(batches, str):
        named = enumerate(batches)
    else:
        raise UsageError(
            "Expected one minibatch per domain, in a list or by name, or one minibatch and domains=labels; found "
            f"{type(batches).__name__}."
        )
    found = {name: _read_samples(one, target, f"domain {name!r}") for name, one in named if one is not None}
    return {name: samples for name, samples in found.items() if len(samples.y)}


def stack_domains(domains: Mapping[Hashable, Samples], key: Tensor) -> Batch:
    """Return one minibatch [K, B, ...] with the samples of all domains.

    B is the largest number of samples. A smaller domain is filled up with its own samples, each of which occurs
    ⌊B/N⌋ or ⌈B/N⌉ times; the key decides which ones occur once more. The expected risk is the mean over its samples.
    """
    most = max(len(samples.y) for samples in domains.values())
    filled = [_repeat(samples, most, random.fold(key, k)) for k, samples in enumerate(domains.values())]
    shapes = {name: _shapes(samples) for name, samples in domains.items()}
    first, expected = next(iter(shapes.items()))
    for name, found in shapes.items():
        if found != expected:
            raise UsageError(
                f"Expected samples of the same shape and type in all domains; found {expected} in domain {first!r} and "
                f"{found} in domain {name!r}. Change the data or pad them."
            )
    stacked: Samples = trees.map_leaves(lambda *leaves: torch.stack(leaves), *filled)
    return Batch(*stacked)


def move_samples(domains: Mapping[Hashable, Samples], like: Tensor) -> dict[Hashable, Samples]:
    """Return the samples on the device of the weights ``like``. Inputs in float64 get the dtype of the weights."""

    def move(leaf: Tensor) -> Tensor:
        dtype = like.dtype if leaf.dtype == torch.float64 else leaf.dtype
        return leaf.to(like.device, dtype, non_blocking=True)

    return {
        name: Samples(trees.map_leaves(move, samples.x), samples.y.to(like.device, non_blocking=True))
        for name, samples in domains.items()
    }


def check_finite(x: Tree, names: Sequence[Hashable]) -> None:
    """Raise a `UsageError` if inputs [K, ...] contain NaN or infinity. This synchronises with the device."""
    for path, leaf in trees.named_leaves(x):
        if leaf.is_floating_point() and not bool(leaf.sum().isfinite()):  # a sum is fast; it can overflow
            wrong = [names[k] for k in range(len(leaf)) if not bool(leaf[k].isfinite().all())]
            if wrong:
                where = f" {path}" if path else ""
                raise UsageError(
                    f"Expected finite inputs; found NaN or infinity in the inputs{where} of domain "
                    f"{', '.join(map(repr, wrong))}. Remove these samples, or replace missing values."
                )


def _read_samples(samples: Any, target: str, where: str) -> Samples:
    """Return the inputs and targets of (x, y), (x, y, meta) or a dictionary, as tensors."""
    if isinstance(samples, Mapping):
        if target not in samples:
            raise UsageError(
                f"Expected the key {target!r} for the targets of {where}; found the keys "
                f"{', '.join(map(repr, samples))}. Name the key: Learner(..., target='label')."
            )
        x: Any = {name: value for name, value in samples.items() if name != target}
        y = samples[target]
    elif isinstance(samples, Sequence) and not isinstance(samples, str) and len(samples) in (2, 3):
        x, y = samples[0], samples[1]
    else:
        size = f" of length {len(samples)}" if isinstance(samples, Sequence) else ""
        raise UsageError(
            f"Expected (x, y), (x, y, meta) or a dictionary for {where}; found {type(samples).__name__}{size}. "
            "Pass one minibatch per domain, or one minibatch and domains=labels."
        )
    found = Samples(_to_tensors(x, f"the inputs of {where}"), _to_tensor(y, f"the targets of {where}"))
    counts = {len(leaf) if leaf.ndim else None for leaf in trees.leaves(found)}
    if len(counts) != 1 or None in counts:
        raise UsageError(
            f"Expected as many targets as inputs for {where}; found inputs {_shape_of(found.x)} and targets "
            f"{list(found.y.shape)}. The first axis is the sample."
        )
    return found


def _split_by_label(samples: Samples, labels: Any) -> dict[Hashable, Samples]:
    names = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(names) != len(samples.y) or any(isinstance(name, list) for name in names):
        raise UsageError(
            f"Expected one domain label for each of {len(samples.y)} samples; found {len(names)} labels"
            f"{' with several values each' if any(isinstance(name, list) for name in names) else ''}."
        )
    rows: dict[Hashable, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return {name: trees.map_leaves(lambda leaf, i=index: leaf[i], samples) for name, index in rows.items()}


def _to_tensors(x: Any, where: str) -> Tree:
    if isinstance(x, Mapping):
        return {name: _to_tensors(value, f"{where}, {name!r}") for name, value in x.items()}
    if isinstance(x, tuple):
        return tuple(_to_tensors(value, where) for value in x)
    return _to_tensor(x, where)


def _to_tensor(value: Any, where: str) -> Tensor:
    """Return a tensor, or a NumPy array or a list of numbers as a tensor."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        if hasattr(value, "__array__"):
            value = numpy.require(value, requirements=["C", "W"])  # torch takes no read-only or reversed arrays
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"an array of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
        raise UsageError(f"Expected a tensor or an array of numbers as {where}; found {kind}. Convert it.") from error


def _repeat(samples: Samples, count: int, key: Tensor) -> Samples:
    """Return ``count`` samples: all of them as often as possible, and a random choice once more."""
    size = len(samples.y)
    if size == count:
        return samples
    rows = torch.cat([torch.arange(size).repeat(count // size), random.permutation(key, size)[: count % size]])
    repeated: Samples = trees.map_leaves(lambda leaf: leaf[rows.to(leaf.device)], samples)
    return repeated


def _shapes(samples: Samples) -> str:
    """Return the shapes and types of one sample, as text."""
    leaves = trees.leaves(samples)
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[1:])}" for leaf in leaves)


def _shape_of(x: Tree) -> str:
    return ", ".join(str(list(leaf.shape)) for leaf in trees.leaves(x))
