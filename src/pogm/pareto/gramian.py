"""Inner products of K updates, summed over the leaves of a tree of tensors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, or a mapping or sequence of trees."""


def gramian(updates: Tensor | Mapping[str, Any] | Sequence[Tree]) -> Tensor:
    r"""Return the inner products of K updates, :math:`G_{ij} = h_i^\top h_j`: [K, K] in float64.

    Each leaf is converted to float64 and multiplied separately, so the updates are never concatenated.

    Args:
        updates: K updates in one of three forms: a tensor [K, ...]; a mapping whose leaves are stacked [K, ...];
            or a sequence of K trees, each a tensor, a mapping or a sequence of tensors (as `autograd.grad` returns).
    """
    leaves = stacked_leaves(updates) if isinstance(updates, Tensor | Mapping) else stack_leaves(updates)
    total: Tensor | None = None
    for path, leaf in leaves:
        rows = leaf.reshape(leaf.shape[0], -1).to(torch.float64)  # [K, P]
        products = rows @ rows.mT
        if total is not None and total.shape != products.shape:
            raise ValueError(
                f"expected the same number of updates in every leaf, found {total.shape[0]} in the first and "
                f"{leaf.shape[0]} in {path}; stack every leaf as [K, ...]"
            )
        total = products if total is None else total + products
    if total is None or total.shape[0] == 0:
        raise ValueError("expected at least one update with at least one leaf, found none")
    return total


def stacked_leaves(tree: Tree) -> Iterator[tuple[str, Tensor]]:
    """Yield the leaves [K, ...] of a tree of stacked updates, with their paths."""
    for path, leaf in flatten(tree):
        if leaf.ndim == 0:
            raise ValueError(f"expected a leaf [K, ...], found a scalar at {path}; stack the updates of the K domains")
        yield path, leaf


def stack_leaves(trees: Sequence[Tree]) -> Iterator[tuple[str, Tensor]]:
    """Yield the leaves of K trees with their paths, stacked as [K, ...] one leaf at a time."""
    if isinstance(trees, str) or not isinstance(trees, Sequence):
        raise TypeError(f"expected a tensor, a mapping or a sequence of updates, found {type(trees).__name__}")
    domains = [dict(flatten(tree)) for tree in trees]
    for i, domain in enumerate(domains):
        if domain.keys() != domains[0].keys():
            odd = sorted(domain.keys() ^ domains[0].keys())
            raise ValueError(f"expected the same leaves in every update, found {odd} in only one of updates 0 and {i}")
    for path in domains[0] if domains else ():
        shapes = [tuple(domain[path].shape) for domain in domains]
        if len(set(shapes)) > 1:
            raise ValueError(f"expected one shape for every update at {path}, found {shapes}")
        yield path, torch.stack([domain[path] for domain in domains])


def flatten(tree: Tree, path: str = "updates") -> Iterator[tuple[str, Tensor]]:
    """Yield each leaf of a tree with its path."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for name, branch in tree.items():
            yield from flatten(branch, f"{path}[{name!r}]")
    elif isinstance(tree, Sequence) and not isinstance(tree, str):
        for i, branch in enumerate(tree):
            yield from flatten(branch, f"{path}[{i}]")
    else:
        raise TypeError(f"expected a tensor at {path}, found {type(tree).__name__}")
