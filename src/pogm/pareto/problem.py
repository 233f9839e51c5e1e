"""The inner problem in units of its own: what the solvers are given, whatever the scale of the updates."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Centre = tuple[Tensor, Tensor]
"""Another centre h_0 of the ball: its inner products ``b_i = h_i·h_0`` [..., K] and ``‖h_0‖²`` [...]."""

CANCELLED = 1e-6  # a mixture shorter than this share of what is mixed counts as zero: G knows ν² to 1e-16 only
NO_MEAN = 1e-7  # the same for the mean, h_0
ABSENT = 1e-12  # an update shorter than this share of the typical one is a zero update


class Problem(NamedTuple):
    """min over the simplex of ``b·π + r ‖h_π‖``, with trace(G) = K and b per unit length of h_0.

    q is homogeneous in h_0, so its length s is taken out: the solvers see cosines, not lengths, and a
    mean update much shorter than the updates costs no accuracy.
    """

    G: Tensor  # [..., K, K]
    b: Tensor  # [..., K]: h_i·h_0 / s
    radius: Tensor  # [..., 1]: r
    length: Tensor  # [..., 1]: s, or 0 where h_0 is nothing but rounding error
    scale: Tensor  # [..., 1]: trace(G) / K as given; lengths are in units of its root
    ball: Tensor  # [..., 1]: r s
    target: Tensor  # [..., K]: b, but far above any alignment in reach for zero updates, which no step can align with


def normalised(G: Tensor, radius: float | Tensor, centre: Centre | None = None) -> Problem:
    """Check the arguments and bring the problem to unit scale, in float64 and without gradients."""
    if G.ndim < 2 or G.shape[-1] != G.shape[-2]:
        raise ValueError(f"expected a Gramian [..., K, K], found shape {tuple(G.shape)}; see pogm.pareto.gramian")
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    radius = relative_radius(radius, G)
    scale = G.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).clamp(min=1e-300)
    G = G / scale.unsqueeze(-1)
    if centre is None:
        b = G.mean(-1)
        square, least = b.mean(-1, keepdim=True).clamp(min=0), NO_MEAN
    else:
        b, square = (part.detach().to(torch.float64) for part in centre)
        if b.shape[-1] != K:
            raise ValueError(f"expected a centre with h_i·h_0 of {K} updates, found shape {tuple(b.shape)}")
        b, square, least = b / scale, square.unsqueeze(-1) / scale, ABSENT
    length = square.sqrt()
    b = b / length.clamp(min=ABSENT)
    length = torch.where(square <= least**2, 0.0, length)
    far = 2 * math.sqrt(K) * (1 + radius)
    target = torch.where(G.diagonal(dim1=-2, dim2=-1) <= ABSENT**2, far, b)
    return Problem(G, b, radius, length, scale, radius * length, target)


def relative_radius(radius: float | Tensor, like: Tensor) -> Tensor:
    """The radius as a tensor [..., 1]; filled on the device, so that nothing is copied to it."""
    if isinstance(radius, Tensor):
        return radius.detach().to(torch.float64).unsqueeze(-1)
    if not 0 <= radius < math.inf:
        raise ValueError(f"expected a relative radius r >= 0, found {radius}; POGM uses 0 <= r < 1")
    return like.new_full((1,), float(radius))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, for small matrices: while compiling as sums, which fuse with what is around them."""
    if torch.compiler.is_compiling():
        return (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)
    return left @ right


def images(mixtures: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Of each mixture π [..., F, K]: the inner products h_i·h_π [..., F, K] and the square ν² = ‖h_π‖² [..., F, 1]."""
    products = product(mixtures, G)
    return products, (mixtures * products).sum(-1, keepdim=True).clamp(min=0)


def cancels(mixtures: Tensor, square: Tensor, G: Tensor) -> Tensor:
    """Whether h_π is zero as far as G can tell, from ν². [..., F, K], [..., F, 1] -> [..., F, 1]."""
    return square <= CANCELLED**2 * product(mixtures, G.diagonal(dim1=-2, dim2=-1).unsqueeze(-1))
