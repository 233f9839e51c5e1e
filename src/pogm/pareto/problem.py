"""The inner problem of POGM, scaled so that the solvers do not depend on the size of the updates.

Symbols: h_i are the K updates, G_ij = h_i·h_j their inner products, h_0 is the centre of the ball (by default the mean
of the h_i), s = ‖h_0‖, r the radius of the ball relative to s, π a mixture (a point of the simplex) and h_π = Σ π_i
h_i.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Centre = tuple[Tensor, Tensor]
"""A centre h_0 other than the mean of the updates: inner products ``b_i = h_i·h_0`` [..., K] and ``‖h_0‖²`` [...]."""

ZERO_MIXTURE = 1e-6  # h_π = 0 if ‖h_π‖ is below this fraction of the lengths of its updates; G has ‖h_π‖² to 1e-16 only
ZERO_MEAN = 1e-7  # h_0 = 0 if the length of the mean is below this fraction of the typical length of an update
ZERO_UPDATE = 1e-12  # h_i = 0 if its length is below this fraction of the typical length; also for other centres


class BallProblem(NamedTuple):
    r"""The scaled problem :math:`\min_{\pi\in\Delta} b^\top\pi + r\|h_\pi\|`, with trace(G) = K and b divided by s.

    The objective is homogeneous in h_0, so its length s is taken out. A centre that is much shorter than the updates
    therefore costs no precision.
    """

    G: Tensor  # [..., K, K]
    b: Tensor  # [..., K]: h_i·h_0 / s
    radius: Tensor  # [..., 1]: r
    centre_norm: Tensor  # [..., 1]: s, or 0 if h_0 is zero up to rounding
    scale: Tensor  # [..., 1]: trace(G) / K before scaling; the unit of squared lengths
    ball_radius: Tensor  # [..., 1]: r s
    target: Tensor  # [..., K]: b, with a value above every possible alignment for zero updates, which excludes them


def normalise(G: Tensor, radius: float | Tensor, centre: Centre | None = None) -> BallProblem:
    """Check the arguments and return the scaled problem, in float64 and without gradients."""
    if G.ndim < 2 or G.shape[-1] != G.shape[-2]:
        raise ValueError(f"expected a Gramian [..., K, K], found shape {tuple(G.shape)}; see pogm.pareto.gramian")
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    radius = radius_tensor(radius, G)
    scale = G.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).clamp(min=1e-300)
    G = G / scale.unsqueeze(-1)
    if centre is None:
        b = G.mean(-1)
        square, threshold = b.mean(-1, keepdim=True).clamp(min=0), ZERO_MEAN
    else:
        b, square = (part.detach().to(torch.float64) for part in centre)
        if b.shape[-1] != K:
            raise ValueError(f"expected a centre with h_i·h_0 of {K} updates, found shape {tuple(b.shape)}")
        b, square, threshold = b / scale, square.unsqueeze(-1) / scale, ZERO_UPDATE
    centre_norm = square.sqrt()
    b = b / centre_norm.clamp(min=ZERO_UPDATE)
    centre_norm = torch.where(square <= threshold**2, 0.0, centre_norm)
    unreachable = 2 * math.sqrt(K) * (1 + radius)
    target = torch.where(G.diagonal(dim1=-2, dim2=-1) <= ZERO_UPDATE**2, unreachable, b)
    return BallProblem(G, b, radius, centre_norm, scale, radius * centre_norm, target)


def radius_tensor(radius: float | Tensor, like: Tensor) -> Tensor:
    """Return the radius as a tensor [..., 1]. A number is filled in on the device, without a copy from the host."""
    if isinstance(radius, Tensor):
        return radius.detach().to(torch.float64).unsqueeze(-1)
    if not 0 <= radius < math.inf:
        raise ValueError(f"expected a relative radius r >= 0, found {radius}; POGM uses 0 <= r < 1")
    return like.new_full((1,), float(radius))


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right for small matrices. While compiling it is written as a sum, which fuses with its context."""
    if torch.compiler.is_compiling():
        return (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)
    return left @ right


def inner_products(mixtures: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Return h_i·h_π [..., F, K] and ‖h_π‖² [..., F, 1] of the mixtures π [..., F, K]."""
    products = product(mixtures, G)
    return products, (mixtures * products).sum(-1, keepdim=True).clamp(min=0)


def is_zero_mixture(mixtures: Tensor, square: Tensor, G: Tensor) -> Tensor:
    """Return whether h_π = 0 up to the rounding of G, from ‖h_π‖². [..., F, K], [..., F, 1] -> [..., F, 1]."""
    return square <= ZERO_MIXTURE**2 * product(mixtures, G.diagonal(dim1=-2, dim2=-1).unsqueeze(-1))
