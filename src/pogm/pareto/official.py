"""The solver of the authors' code, kept to reproduce its numbers."""

import torch
from torch import Tensor

from pogm.pareto.problem import normalised

STEPS = 20
MOMENTUM = 0.5
EPSILON = 1e-4  # absolute, whatever the scale of the updates


def official_weights(G: Tensor, kappa: float | Tensor, *, rescale: bool = True) -> tuple[Tensor, Tensor]:
    r"""The mixture p and the weights c, [..., K] each, as the authors' code (class ``CAG1``, after CAGrad) finds them.

    Twenty steps of gradient descent with momentum on the logits of p, the best of the 21 points kept, of

    .. math:: p^\top \bar g + \kappa \sqrt{\bar{\bar g} + \epsilon} \sqrt{p^\top G p + \epsilon},

    where :math:`\bar g` are the row means of G and :math:`\bar{\bar g}` is the mean of all its entries, G being
    divided by the squared mean length of the updates; then, with ``rescale``, c is divided by 1 + κ². It is not
    invariant to scale: for short updates ε drowns G, and p comes out near uniform. On some problems the descent
    oscillates, and which point is best depends on rounding. The gradient is written out, so that it can be mapped.
    """
    kappa = normalised(G, kappa).radius  # checked and shaped [..., 1]
    G = G.detach().to(torch.float64)
    K = G.shape[-1]
    rate = 50.0 if K == 50 else 25.0
    lengths = (G.diagonal(dim1=-2, dim2=-1) + EPSILON).sqrt()
    G = G / lengths.mean(-1)[..., None, None] ** 2
    b = G.mean(-1)
    ball = kappa * (b.mean(-1, keepdim=True) + EPSILON).sqrt()

    logits = torch.zeros_like(b + kappa)
    velocity = torch.zeros_like(logits)
    best, lowest = logits.softmax(-1), torch.full_like(logits[..., :1], torch.inf)
    for step in range(STEPS + 1):
        p = logits.softmax(-1)
        products = (G @ p.unsqueeze(-1)).squeeze(-1)
        length = ((p * products).sum(-1, keepdim=True) + EPSILON).sqrt()
        value = (p * b).sum(-1, keepdim=True) + ball * length
        best, lowest = torch.where(value < lowest, p, best), torch.minimum(value, lowest)
        if step < STEPS:
            slope = b + ball * products / length
            velocity = MOMENTUM * velocity + p * (slope - (p * slope).sum(-1, keepdim=True))
            logits = logits - rate * velocity

    length = ((best * (G @ best.unsqueeze(-1)).squeeze(-1)).sum(-1, keepdim=True) + EPSILON).sqrt()
    weights = 1 / K + ball / (length + EPSILON) * best
    return best, weights / (1 + kappa**2) if rescale else weights
