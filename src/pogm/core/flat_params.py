"""Flat parameters: all weights of a network as views of one tensor."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._nn import unflatten_dense_tensors
from torch.utils import _pytree

from pogm.core.compilation import inside_transform

Params = dict[str, Tensor]


class Layout(NamedTuple):
    """Names and shapes of the weights in a flat tensor, in order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each weight."""
        return [shape.numel() for shape in self.shapes]


class FlatParams(dict[str, Tensor]):
    """Dictionary of weights that are views of one tensor, so an operation on all weights is one kernel.

    ``flat`` is [..., P]. Its leading axes (domains, trials) are the leading axes of every weight.
    """

    def __init__(self, flat: Tensor, layout: Layout):
        self.flat, self.layout = flat, layout
        leading = flat.shape[:-1]
        if not leading and not inside_transform():  # one call of torch for all weights
            super().__init__(zip(layout.names, unflatten_dense_tensors(flat, _templates(layout)), strict=True))
            return
        named = zip(layout.names, layout.shapes, torch.split_with_sizes(flat, layout.sizes, -1), strict=True)
        super().__init__((name, piece.view(leading + shape)) for name, shape, piece in named)

    def like(self, flat: Tensor) -> "FlatParams":
        """Return other values with the same layout."""
        return FlatParams(flat, self.layout)


@lru_cache(maxsize=64)
def _templates(layout: Layout) -> list[Tensor]:
    """Return tensors with the shapes of the weights, which take no memory."""
    return [torch.empty(()).expand(shape) for shape in layout.shapes]


def flatten(params: Params, leading: int = 0) -> FlatParams:
    """Return the weights as views of one tensor. This copies, unless they are flat already.

    Args:
        params: Weights by name.
        leading: Number of leading axes (domains, trials) that every weight has.
    """
    if isinstance(params, FlatParams):
        return params
    layout = Layout(tuple(params), tuple(leaf.shape[leading:] for leaf in params.values()))
    return FlatParams(torch.cat([leaf.reshape(*leaf.shape[:leading], -1) for leaf in params.values()], -1), layout)


def flat_vector(params: Params) -> Tensor:
    """Return all weights as one vector. This copies, unless they are flat already."""
    if isinstance(params, FlatParams):
        return params.flat
    return torch.cat([leaf.flatten() for leaf in params.values()])


def unflatten(vector: Tensor, params: Params) -> Params:
    """Return a vector as weights with the names and shapes of ``params``; flat, if ``params`` is flat."""
    if isinstance(params, FlatParams):
        return params.like(vector)
    pieces = torch.split(vector, [leaf.numel() for leaf in params.values()])
    named = zip(params.items(), pieces, strict=True)
    return {name: piece.view(leaf.shape).to(leaf.dtype, copy=True) for (name, leaf), piece in named}


def _unflatten_leaves(leaves: Iterable[Any], layout: Layout) -> dict[str, Any]:
    """Return a plain dictionary: ``grad`` and ``vmap`` differentiate and map single weights, not the flat tensor."""
    return dict(zip(layout.names, leaves, strict=True))


_pytree.register_pytree_node(FlatParams, lambda tree: (list(tree.values()), tree.layout), _unflatten_leaves)
