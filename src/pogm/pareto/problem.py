"""The inner problem in units of its own: what the solvers are given, whatever the scale of the updates."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Centre = tuple[Tensor, Tensor]
"""Another centre h_0 of the ball: its inner products ``b_i = h_i·h_0`` [..., K] and ``‖h_0‖²`` [...]."""

CANCELLED = 1e-7  # |Σ π_i h_i| below this share of Σ π_i |h_i| is rounding error: G knows ν² to 1e-16 only
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
    absent: Tensor  # [..., K]: zero updates, which no step can align with
    far: Tensor  # [..., 1]: above any alignment in reach

    def present(self) -> tuple[Tensor, Tensor]:
        """G and b in which zero updates never matter: orthogonal to all, and far from being the worst."""
        either = self.absent.unsqueeze(-1) | self.absent.unsqueeze(-2)
        G = torch.where(either, 0.0, self.G) + torch.diag_embed(self.absent.to(self.G.dtype))
        return G, torch.where(self.absent, self.far, self.b)


def normalised(G: Tensor, radius: float | Tensor, centre: Centre | None = None) -> Problem:
    """Check the arguments and bring the problem to unit scale, in float64 and without gradients."""
    if G.ndim < 2 or G.shape[-1] != G.shape[-2]:
        raise ValueError(f"expected a Gramian [..., K, K], found shape {tuple(G.shape)}; see pogm.pareto.gramian")
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    radius = relative_radius(radius, G)
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    scale = diagonal.mean(-1, keepdim=True)
    scale = torch.where(scale == 0, 1.0, scale)
    G = G / scale.unsqueeze(-1)
    squares = diagonal / scale
    if centre is None:
        b = G.mean(-1)
        square = b.mean(-1, keepdim=True).clamp(min=0)
        nothing = square <= (CANCELLED * squares.sqrt().mean(-1, keepdim=True)) ** 2
    else:
        b, square = (part.detach().to(torch.float64) for part in centre)
        if b.shape[-1] != K:
            raise ValueError(f"expected a centre with h_i·h_0 of {K} updates, found shape {tuple(b.shape)}")
        b, square = b / scale, square.unsqueeze(-1) / scale
        nothing = square <= ABSENT**2
    length = torch.where(nothing, 0.0, square.sqrt())
    b = torch.where(nothing, 0.0, b) / torch.where(nothing, 1.0, length)
    far = 2 * math.sqrt(K) * (1 + radius)
    return Problem(G, b, radius, length, scale, squares <= ABSENT**2, far)


def relative_radius(radius: float | Tensor, like: Tensor) -> Tensor:
    """The radius as a tensor [..., 1]; filled on the device, so that nothing is copied to it."""
    if isinstance(radius, Tensor):
        return radius.detach().to(torch.float64).unsqueeze(-1)
    if not 0 <= radius < math.inf:
        raise ValueError(f"expected a relative radius r >= 0, found {radius}; POGM uses 0 <= r < 1")
    return like.new_full((1,), float(radius))


def images(mixtures: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Of each mixture π [..., F, K]: the inner products h_i·h_π [..., F, K] and the length ν = ‖h_π‖ [..., F, 1]."""
    products = mixtures @ G
    return products, (mixtures * products).sum(-1, keepdim=True).clamp(min=0).sqrt()


def cancels(mixtures: Tensor, length: Tensor, G: Tensor) -> Tensor:
    """Whether h_π is zero as far as G can tell. [..., F, K], [..., F, 1] -> [..., F, 1]."""
    lengths = G.diagonal(dim1=-2, dim2=-1).sqrt().unsqueeze(-1)
    return length <= CANCELLED * (mixtures @ lengths)
