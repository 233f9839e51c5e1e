"""Arithmetic on trees of tensors: dictionaries, (named) tuples and lists with tensors at the leaves."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Tree = Any  # a tensor, or a dictionary, (named) tuple or list of trees
Params = dict[str, Tensor]


def map_leaves(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply a function leaf by leaf."""
    return tree_map(function, *trees)


def add(left: Tree, right: Tree) -> Tree:
    """left + right."""
    return tree_map(torch.add, left, right)


def subtract(left: Tree, right: Tree) -> Tree:
    """left − right."""
    return tree_map(torch.sub, left, right)


def scale(tree: Tree, factor: Tensor | float) -> Tree:
    """factor · tree, in the tree's own dtype."""
    return tree_map(lambda leaf: leaf * _like(factor, leaf), tree)


def move(start: Tree, direction: Tree, rate: Tensor | float) -> Tree:
    """start + rate · direction."""
    return tree_map(lambda a, d: a + _like(rate, a) * d, start, direction)


def combine(weights: Tensor, stacked: Tree) -> Tree:
    """Σ_i weights_i · stacked_i over the leading axis of every leaf."""
    return tree_map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, dims=1), stacked)


def mean(stacked: Tree) -> Tree:
    """The mean over the leading axis; of integers, the first."""
    return tree_map(lambda leaf: leaf.mean(0) if leaf.is_floating_point() else leaf[0], stacked)


def where(condition: Tensor, yes: Tree, no: Tree) -> Tree:
    """yes where the condition (a scalar, or one per leading index) holds, else no."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return tree_map(choose, yes, no)


def dot(left: Tree, right: Tree) -> Tensor:
    """The inner product over all leaves, in float64."""
    products = tree_map(lambda a, b: (a.double() * b.double()).sum(), left, right)
    return torch.stack(tree_leaves(products)).sum()


def all_finite(tree: Tree) -> Tensor:
    """Whether every number of the tree is finite."""
    return torch.stack([leaf.isfinite().all() for leaf in tree_leaves(tree)]).all()


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose leaves have the list as leading axis."""
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def index(stacked: Tree, position: int) -> Tree:
    """The tree at a position of the leading axis."""
    return tree_map(lambda leaf: leaf[position], stacked)


def repeat(tree: Tree, count: int) -> Tree:
    """``count`` copies along a new leading axis."""
    return tree_map(lambda leaf: leaf.expand(count, *leaf.shape).clone(), tree)


def leading(tree: Tree) -> int:
    """The length of the leading axis, which all leaves share."""
    length: int = tree_leaves(tree)[0].shape[0]
    return length


def named(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path, ``state/params/head.weight``."""
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
        yield from named(child, f"{prefix}/{name}" if prefix else str(name))


def _like(factor: Tensor | float, leaf: Tensor) -> Tensor | float:
    """A scalar tensor must not widen the dtype of what it multiplies."""
    return factor.to(leaf.dtype) if isinstance(factor, Tensor) else factor
