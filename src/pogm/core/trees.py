"""Arithmetic on trees of tensors: nested dictionaries, (named) tuples and lists of tensors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pogm.core.compilation import known_true
from pogm.core.flat_params import FlatParams
from pogm.core.flat_params import Params as Params

Tree = Any  # a tensor, or a dictionary, (named) tuple or list of trees


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to every leaf, or to the corresponding leaves of several trees of one structure.

    Torch's ``tree_map`` does the same and takes five times as long.
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)
    return _map_children(map_leaves, function, tree, *others)


def map_numbers(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply an elementwise function to all numbers of a tree. Flat parameters are passed as one tensor."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, FlatParams) and all(isinstance(o, FlatParams) and o.layout == tree.layout for o in others):
        return tree.like(function(tree.flat, *(other.flat for other in others)))
    return _map_children(map_numbers, function, tree, *others)


def _map_children(recurse: Callable[..., Tree], function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: recurse(function, child, *(o[name] for o in others)) for name, child in tree.items()}
    children = (recurse(function, *group) for group in zip(tree, *others, strict=True))
    return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)


def leaves(tree: Tree) -> list[Tensor]:
    """Return all tensors of a tree."""
    return [leaf for _, leaf in named_leaves(tree)]


def storages(tree: Tree) -> list[Tensor]:
    """Return the tensors that hold all numbers of a tree: its leaves, or the flat tensor of flat parameters."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, FlatParams):
        return [tree.flat]
    return [found for child in (tree.values() if isinstance(tree, dict) else tree) for found in storages(child)]


def add(left: Tree, right: Tree) -> Tree:
    """Return left + right."""
    return map_numbers(torch.add, left, right)


def subtract(left: Tree, right: Tree) -> Tree:
    """Return left − right."""
    return map_numbers(torch.sub, left, right)


def move(start: Tree, direction: Tree, rate: Tensor | float) -> Tree:
    """Return start + rate · direction."""
    return map_numbers(lambda a, d: a + _cast(rate, a) * d, start, direction)


def combine(weights: Tensor, stacked: Tree) -> Tree:
    """Return Σ_i weights_i · stacked_i over the leading axis of every leaf."""
    return map_numbers(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, dims=1), stacked)


def mean(stacked: Tree) -> Tree:
    """Return the mean over the leading axis of every leaf; the first element for integer leaves."""
    return map_numbers(lambda leaf: leaf.mean(0) if leaf.is_floating_point() else leaf[0], stacked)


def where(condition: Tensor, yes: Tree, no: Tree) -> Tree:
    """Select ``yes`` if the condition (a scalar, or one value per index of the leading axis) holds, else ``no``."""
    return map_numbers(lambda a, b: torch.where(_expand(condition, a), a, b), yes, no)


def mask(condition: Tensor, tree: Tree) -> Tree:
    """Return the tree with zeros (also instead of NaN) where the condition does not hold.

    The condition is a scalar, or one value per index of the leading axis.
    """
    return tree if known_true(condition) else map_numbers(lambda leaf: _mask(condition, leaf), tree)


def dot(left: Tree, right: Tree) -> Tensor:
    """Return the inner product of two trees in float64."""
    products = map_leaves(lambda a, b: (a.double() * b.double()).sum(), left, right)
    return torch.stack(leaves(products)).sum()


def all_finite(tree: Tree) -> Tensor:
    """Return a scalar tensor that is True if every number of the tree is finite."""
    return torch.stack([is_finite(leaf) for leaf in storages(tree) if leaf.numel()]).all()


def is_finite(leaf: Tensor) -> Tensor:
    """Return a scalar tensor that is True if every number is finite. The tensor must not be empty.

    The smallest and the largest number are NaN if any number is. On a CPU this is many times as fast as ``isfinite``.
    """
    return torch.stack(leaf.aminmax()).isfinite().all()


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees along a new leading axis of every leaf."""
    return map_numbers(lambda *leaves: torch.stack(leaves), *trees)


def index(stacked: Tree, position: int) -> Tree:
    """Select one index of the leading axis of every leaf."""
    return map_numbers(lambda leaf: leaf[position], stacked)


def repeat(tree: Tree, count: int) -> Tree:
    """Repeat a tree ``count`` times along a new leading axis."""
    return map_numbers(lambda leaf: leaf.expand(count, *leaf.shape).clone(), tree)


def leading_size(tree: Tree) -> int:
    """Return the length of the leading axis, which is the same for all leaves."""
    length: int = storages(tree)[0].shape[0]
    return length


def named_leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every leaf with its path, such as ``state/params/head.weight``. Checkpoints use these paths as keys."""
    if isinstance(tree, Tensor):
        yield prefix, tree
        return
    if isinstance(tree, dict):
        children: Any = tree.items()
    elif hasattr(tree, "_asdict"):
        children = tree._asdict().items()
    else:
        children = enumerate(tree)
    for name, child in children:
        yield from named_leaves(child, f"{prefix}/{name}" if prefix else str(name))


def _mask(condition: Tensor, leaf: Tensor) -> Tensor:
    return torch.where(_expand(condition, leaf), leaf, 0)


def _expand(condition: Tensor, leaf: Tensor) -> Tensor:
    return condition.reshape(condition.shape + (1,) * (leaf.ndim - condition.ndim))


def _cast(factor: Tensor | float, leaf: Tensor) -> Tensor | float:
    """Cast a scalar tensor to the dtype of the leaf, so that the product keeps that dtype."""
    return factor.to(leaf.dtype) if isinstance(factor, Tensor) else factor
