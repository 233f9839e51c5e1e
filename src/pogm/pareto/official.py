"""The solver in the code of the POGM authors, to reproduce its numbers."""

import torch
from torch import Tensor

from pogm.pareto.problem import Centre, normalise

EPSILON = 1e-4  # ε; absolute, so the result depends on the scale of the updates


def official_weights(
    G: Tensor, kappa: float | Tensor, *, centre: Centre | None = None, steps: int = 20, momentum: float = 0.5
) -> tuple[Tensor, Tensor]:
    r"""Return the mixture p and the weights c, [..., K] each, of the authors' class ``CAG1`` (derived from CAGrad).

    The solver is gradient descent with momentum on the logits of p, from the uniform p, with learning rate 25 (50 if
    K = 50). It returns the best of all points, including the first. The objective is

    .. math:: p^\top \bar g + \kappa \sqrt{\bar{\bar g} + \epsilon} \sqrt{p^\top G p + \epsilon},

    where G is divided by the squared mean length of the updates, :math:`\bar g` are its row means and
    :math:`\bar{\bar g}` is the mean of all its entries. The direction is

    .. math:: d = \frac{1}{1 + \kappa^2} \sum_i (\tfrac1K + \lambda p_i) h_i, \qquad
        \lambda = \frac{\kappa \sqrt{\bar{\bar g} + \epsilon}}{\sqrt{p^\top G p + \epsilon} + \epsilon}.

    With another ``centre`` h_0, :math:`\bar g` are the products h_i·h_0 and :math:`\bar{\bar g} = \|h_0\|^2`. The
    centre itself is not rescaled, and c is added to it, without the 1/K: :math:`d = h_0 + \sum_i c_i h_i`.

    The result depends on the scale of the updates: for short updates ε dominates G, and p is near uniform. On some
    problems the descent oscillates, and the best point depends on rounding. The gradient is written out, so that the
    function works under `vmap`.

    Args:
        G: Inner products [..., K, K], as from `gramian`.
        kappa: Radius κ of the ball, relative to ‖h_0‖; a number or a tensor [...].
        centre: `(h_i·h_0 [..., K], ‖h_0‖² [...])` of another centre than the mean of the updates.
        steps: Number of descent steps.
        momentum: Momentum of the descent.
    """
    kappa = normalise(G, kappa).radius  # checked, [..., 1]
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
            gradient = b + ball * products / length  # with respect to p
            velocity = momentum * velocity + p * (gradient - (p * gradient).sum(-1, keepdim=True))
            logits = logits - rate * velocity

    length = ((best * (G @ best.unsqueeze(-1)).squeeze(-1)).sum(-1, keepdim=True) + EPSILON).sqrt()
    weights = ball / (length + EPSILON) * best
    if centre is None:
        weights = weights + 1 / K
    return best, weights / (1 + kappa**2)
