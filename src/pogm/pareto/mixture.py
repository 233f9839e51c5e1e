"""The worst mixture π̃ of the updates, and the certificate that it is."""

import torch
from torch import Tensor

from pogm.pareto.problem import Centre, normalised
from pogm.pareto.solution import certificate, escape, measured, solve


def mixture(G: Tensor, radius: float | Tensor, *, centre: Centre | None = None) -> Tensor:
    r"""The mixture of the updates that agrees least with any step in the ball: π̃ [..., K] on the simplex.

    .. math:: \tilde\pi = \arg\min_{\pi\in\Delta} \; q(\pi) = b^\top \pi + r s \sqrt{\pi^\top G \pi},
              \qquad b_i = h_i^\top h_0, \quad s = \|h_0\|.

    Uniform where it does not matter (r = 0, h_0 = 0, all updates equal), zero for zero updates; among several
    optima one near uniform. The arguments are those of `pogm.pareto.solve`.
    """
    return solve(G, radius, centre=centre).mixture


def gap(G: Tensor, mixture: Tensor, radius: float | Tensor, *, centre: Centre | None = None) -> Tensor:
    r"""How far a mixture can be from optimal: the duality gap [...], zero if and only if it is the minimiser.

    .. math:: q(\pi) - \min_i h_i^\top d(\pi) \ge 0, \qquad d(\pi) = h_0 + r s \, h_\pi / \|h_\pi\|.

    In units of G: divide by trace(G) / K. Zero updates do not enter the minimum. Where h_π = 0, d(π) is the
    projection of h_0 on {d : h_i·d ≥ 0}, or the point of the ball towards it: again zero if and only if π is
    optimal. Where the ball is a point (r = 0 or h_0 = 0) every mixture gives the same step, and the gap is 0.
    """
    problem = normalised(G, radius, centre)
    mixture = mixture.detach().to(torch.float64)
    products, length, nothing = measured(mixture, problem)
    correction = escape(problem, nothing, always=False)
    return certificate(problem, mixture, products, length, nothing, correction)[1].squeeze(-1)
