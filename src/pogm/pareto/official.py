"""The solver of the authors' code, kept to reproduce its numbers."""

import torch
from torch import Tensor

from pogm.pareto.problem import Centre, normalised

EPSILON = 1e-4  # absolute, whatever the scale of the updates


def official_weights(
    G: Tensor, kappa: float | Tensor, *, centre: Centre | None = None, steps: int = 20, momentum: float = 0.5
) -> tuple[Tensor, Tensor]:
    r"""The mixture p and the weights c, [..., K] each, as the authors' code (class ``CAG1``, after CAGrad) finds them.

    Gradient descent with momentum on the logits of p, from p uniform, with rate 25 (50 if K = 50). The best of all
    points, the first included, is kept. The objective is

    .. math:: p^\top \bar g + \kappa \sqrt{\bar{\bar g} + \epsilon} \sqrt{p^\top G p + \epsilon},

    where :math:`\bar g` are the row means of G and :math:`\bar{\bar g}` is the mean of all its entries, G being
    divided by the squared mean length of the updates. Then

    .. math:: d = \frac{1}{1 + \kappa^2} \sum_i (\tfrac1K + \lambda p_i) h_i, \qquad
        \lambda = \frac{\kappa \sqrt{\bar{\bar g} + \epsilon}}{\sqrt{p^\top G p + \epsilon} + \epsilon}.

    With another ``centre`` h_0, :math:`\bar g` are the products h_i·h_0 and :math:`\bar{\bar g} = \|h_0\|^2`. The
    centre itself is not rescaled, and c is added to it, without the 1/K: :math:`d = h_0 + \sum_i c_i h_i`.

    The result is not invariant to scale: for short updates ε dominates G, and p comes out near uniform. On some
    problems the descent oscillates, and which point is best depends on rounding. The gradient is written out, for
    `vmap`.
    """
    kappa = normalised(G, kappa).radius  # checked and shaped [..., 1]
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    rate = 50.0 if K == 50 else 25.0
    scale = (G.diagonal(dim1=-2, dim2=-1) + EPSILON).sqrt().mean(-1, keepdim=True) ** 2
    G = G / scale.unsqueeze(-1)
    if centre is None:
        b = G.mean(-1)
        square = b.mean(-1, keepdim=True)
    else:
        b, square = (part.detach().to(torch.float64) for part in (centre[0], centre[1].unsqueeze(-1)))
        b, square = b / scale, square / scale
    ball = kappa * (square + EPSILON).sqrt()

    logits = torch.zeros_like(b + kappa)
    velocity = torch.zeros_like(logits)
    best, lowest = logits.softmax(-1), torch.full_like(logits[..., :1], torch.inf)
    for step in range(steps + 1):
        p = logits.softmax(-1)
        products = (G @ p.unsqueeze(-1)).squeeze(-1)
        length = ((p * products).sum(-1, keepdim=True) + EPSILON).sqrt()
        value = (p * b).sum(-1, keepdim=True) + ball * length
        best, lowest = torch.where(value < lowest, p, best), torch.minimum(value, lowest)
        if step < steps:
            slope = b + ball * products / length
            velocity = momentum * velocity + p * (slope - (p * slope).sum(-1, keepdim=True))
            logits = logits - rate * velocity

    length = ((best * (G @ best.unsqueeze(-1)).squeeze(-1)).sum(-1, keepdim=True) + EPSILON).sqrt()
    weights = ball / (length + EPSILON) * best
    if centre is None:
        weights = weights + 1 / K
    return best, weights / (1 + kappa**2)
