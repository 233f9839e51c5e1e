"""Weights that lie one after the other in one tensor."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

Params = dict[str, Tensor]


class Layout(NamedTuple):
    """The names and shapes of the weights in a packed tensor, in order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each has."""
        return [shape.numel() for shape in self.shapes]


class FlatParams(dict[str, Tensor]):
    """A dictionary of weights that are views of one tensor: what is done to all of them is one operation on it.

    ``flat`` is [..., P]; leading axes (domains, trials) are the weights' own.
    """

    def __init__(self, flat: Tensor, layout: Layout):
        self.flat, self.layout = flat, layout
        leading = flat.shape[:-1]
        named = zip(layout.names, layout.shapes, torch.split(flat, layout.sizes, -1), strict=True)
        super().__init__((name, piece.view(leading + shape)) for name, shape, piece in named)

    def like(self, flat: Tensor) -> "FlatParams":
        """Other numbers under the same names."""
        return FlatParams(flat, self.layout)


def flatten(params: Params, leading: int = 0) -> FlatParams:
    """The weights in one tensor: a copy, unless they are packed already. So many axes lead every leaf."""
    if isinstance(params, FlatParams):
        return params
    layout = Layout(tuple(params), tuple(leaf.shape[leading:] for leaf in params.values()))
    return FlatParams(torch.cat([leaf.reshape(*leaf.shape[:leading], -1) for leaf in params.values()], -1), layout)


def flat_vector(params: Params) -> Tensor:
    """All weights as one vector: a copy, unless they are packed."""
    if isinstance(params, FlatParams):
        return params.flat
    return torch.cat([leaf.flatten() for leaf in params.values()])


def unflatten(numbers: Tensor, params: Params) -> Params:
    """A vector under the names of weights; packed, if they are."""
    if isinstance(params, FlatParams):
        return params.like(numbers)
    pieces = torch.split(numbers, [leaf.numel() for leaf in params.values()])
    named = zip(params.items(), pieces, strict=True)
    return {name: piece.view(leaf.shape).to(leaf.dtype, copy=True) for (name, leaf), piece in named}


def _unflatten_leaves(leaves: Iterable[Any], layout: Layout) -> dict[str, Any]:
    """Transforms such as ``grad`` and ``vmap`` see single leaves: by those they differentiate, and which they map."""
    return dict(zip(layout.names, leaves, strict=True))


_pytree.register_pytree_node(FlatParams, lambda tree: (list(tree.values()), tree.layout), _unflatten_leaves)
