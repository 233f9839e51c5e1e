"""Theorem 1: from the inner products of the updates to their weights in the step."""

from torch import Tensor

from pogm.pareto.problem import Centre
from pogm.pareto.solution import solve


def invariant_weights(
    G: Tensor,
    radius: float | Tensor,
    *,
    centre: Centre | None = None,
    step_radius: float | Tensor | None = None,
    stationary: str = "keep",
) -> Tensor:
    r"""The weights c [..., K] of the step on which the worst-off domain agrees most, d* = Σ c_i h_i.

    .. math:: d^* = h_0 + r \|h_0\| \frac{h_{\tilde\pi}}{\|h_{\tilde\pi}\|}, \qquad
              c_i = \frac1K + r s \frac{\tilde\pi_i}{\sqrt{\tilde\pi^\top G \tilde\pi}}.

    With another ``centre`` h_0 is not made of the h_i, and c is what is added to it: d* = h_0 + Σ c_i h_i,
    without the 1/K. Where h_0 = 0 or all updates are zero the weights are those of h_0, which gives d = 0 up to
    the rounding of the sum. The arguments are those of `pogm.pareto.solve`.
    """
    return solve(G, radius, centre=centre, step_radius=step_radius, stationary=stationary).weights
