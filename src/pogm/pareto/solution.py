r"""Theorem 1 of POGM: the step in a ball around h_0 that maximises the smallest alignment with a domain.

.. math:: \max_{\|d - h_0\| \le r \|h_0\|} \min_i h_i^\top d
          \;=\; \min_{\pi\in\Delta} q(\pi), \qquad q(\pi) = h_\pi^\top h_0 + r \|h_0\| \|h_\pi\|.

The minimiser π̃ gives the step d* = h_0 + r ‖h_0‖ h_π̃ / ‖h_π̃‖. `problem.py` explains the symbols.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core.compilation import known_true
from pogm.pareto import active_set, interior
from pogm.pareto.face_enumeration import list_faces, project_on_faces, solve_on_faces
from pogm.pareto.problem import BallProblem, Centre, inner_products, is_zero_mixture, normalise, radius_tensor

EXACT = 8  # largest K for which all 2^K - 1 faces of the simplex are solved in closed form


class Solution(NamedTuple):
    """A solved problem. All tensors stay on the device of G, so the host does not wait."""

    mixture: Tensor  # [..., K]: π̃
    weights: Tensor  # [..., K]: c, with d = Σ c_i h_i (plus h_0, for another centre)
    worst: Tensor  # [...]: p*, the largest min_i h_i·d in the ball; zero updates are not counted
    gap: Tensor  # [...]: upper bound of q(π̃) − p*, in units of G; see `gap`
    stationary: Tensor  # [...]: bool; h_π̃ = 0 up to rounding, so no step has a positive alignment with all domains


def solve(
    G: Tensor,
    radius: float | Tensor,
    *,
    centre: Centre | None = None,
    step_radius: float | Tensor | None = None,
    stationary: str = "keep",
) -> Solution:
    r"""Solve the max-min problem of Theorem 1 from the inner products G of the updates h_i (in POGM: the trajectories).

    The solution is exact for K ≤ 8. For more domains it is that of an interior-point method; `Solution.gap` bounds its
    error. The function never waits for the device and works under `vmap` and in a CUDA graph. Gradients do not flow
    through it. If G is not finite, the weights are NaN. The rounding of G limits the relative error of the optimum to
    about 1e-16 / ν², where ν is ‖h_π̃‖ relative to ‖h_i‖.

    Args:
        G: Inner products [..., K, K], as from `gramian`.
        radius: r, relative to ‖h_0‖; a tensor [...] if the problems of a batch have different radii.
        centre: `(h_i·h_0 [..., K], ‖h_0‖² [...])` for a ball around another point than the mean of the updates.
        step_radius: r of the step, if it differs from r of the problem, as in Theorem 1 as printed.
        stationary: Step d if h_π̃ = 0: "keep" takes h_0, "project" projects h_0 on {d : h_i·d ≥ 0 for all i}.
    """
    if stationary not in ("keep", "project"):
        raise ValueError(f'expected stationary="keep" or "project", found {stationary!r}')
    is_single = centre is None or centre[0].shape == G.shape[:1]
    if is_single and active_set.is_applicable(G, radius, 0.0 if step_radius is None else step_radius):
        step = radius if step_radius is None else step_radius
        found = active_set.solve_small(G, radius, step, centre)  # type: ignore[arg-type]
        if found is not None:
            mixture, weights, worst, gap = (torch.tensor(part, dtype=torch.float64) for part in found)
            return Solution(mixture, weights, worst, gap, stationary=torch.tensor(False))
    problem = normalise(G, radius, centre)
    step_r = problem.radius if step_radius is None else radius_tensor(step_radius, problem.G)
    K = G.shape[-1]

    mixture = torch.where(problem.ball_radius > 0, minimise(problem), 1 / K)  # if the ball is a point, any π is optimal
    products, norm, is_zero = evaluate(mixture, problem)
    projection = project_centre(problem, is_zero, always=stationary == "project")
    worst, gap = certify(problem, mixture, products, norm, is_zero, projection)

    weights = step_r * problem.centre_norm * mixture / norm  # c_i = r s π̃_i / ‖h_π̃‖
    if projection is not None:
        weights = torch.where(is_zero, problem.centre_norm * projection if stationary == "project" else 0.0, weights)
    flag = is_zero | (problem.centre_norm == 0)
    if centre is None:
        weights = weights + 1 / K  # h_0 = Σ h_i / K
    return Solution(mixture, weights, worst.squeeze(-1), gap.squeeze(-1), flag.squeeze(-1))


def invariant_weights(
    G: Tensor,
    radius: float | Tensor,
    *,
    centre: Centre | None = None,
    step_radius: float | Tensor | None = None,
    stationary: str = "keep",
) -> Tensor:
    r"""Return the weights c [..., K] of the step d* = Σ c_i h_i. The arguments are those of `solve`.

    .. math:: c_i = \frac1K + r s \frac{\tilde\pi_i}{\sqrt{\tilde\pi^\top G \tilde\pi}}, \qquad s = \|h_0\|.

    With another ``centre``, d* = h_0 + Σ c_i h_i, and c has no term 1/K. If h_0 = 0 or all updates are zero, c are the
    weights of h_0, which gives d = 0 up to rounding.
    """
    return solve(G, radius, centre=centre, step_radius=step_radius, stationary=stationary).weights


def mixture(G: Tensor, radius: float | Tensor, *, centre: Centre | None = None) -> Tensor:
    r"""Return the minimiser π̃ = argmin q(π) [..., K] on the simplex. The arguments are those of `solve`.

    π̃ is uniform if every mixture is optimal (r = 0, h_0 = 0, all updates equal), and zero for zero updates. If there
    are several optima, the result is one near uniform.
    """
    return solve(G, radius, centre=centre).mixture


def gap(G: Tensor, mixture: Tensor, radius: float | Tensor, *, centre: Centre | None = None) -> Tensor:
    r"""Return the duality gap [...] of a mixture π [..., K]: an upper bound of q(π) − min q, 0 exactly if π is optimal.

    .. math:: q(\pi) - \min_i h_i^\top d(\pi) \ge 0, \qquad d(\pi) = h_0 + r s \, h_\pi / \|h_\pi\|.

    The gap has the unit of G; divide it by trace(G) / K for a relative gap. Zero updates do not enter the minimum. If
    h_π = 0, d(π) is the projection of h_0 on {d : h_i·d ≥ 0}, or the point of the ball in this direction. If the ball
    is a point (r = 0 or h_0 = 0), all mixtures give the same step and the gap is 0.
    """
    problem = normalise(G, radius, centre)
    mixture = mixture.detach().to(torch.float64)
    products, norm, is_zero = evaluate(mixture, problem)
    projection = project_centre(problem, is_zero, always=False)
    return certify(problem, mixture, products, norm, is_zero, projection)[1].squeeze(-1)


def minimise(problem: BallProblem) -> Tensor:
    """Return π̃ [..., K]: in closed form on all faces if K ≤ 8, by an interior-point method beyond."""
    if problem.G.shape[-1] > EXACT:
        return interior.solve_interior(problem.G, problem.target, problem.radius)
    return solve_on_faces(problem.G, problem.target, problem.radius, list_faces(problem.G))


def evaluate(mixture: Tensor, problem: BallProblem) -> tuple[Tensor, Tensor, Tensor]:
    """Return h_i·h_π [..., K], ‖h_π‖ > 0 [..., 1], and whether h_π = 0 in a ball that is not a point [..., 1]."""
    products, square = inner_products(mixture.unsqueeze(-2), problem.G)
    is_zero = is_zero_mixture(mixture.unsqueeze(-2), square, problem.G).squeeze(-2) & (problem.ball_radius > 0)
    return products.squeeze(-2), square.squeeze(-2).sqrt().clamp(min=1e-150), is_zero


def project_centre(problem: BallProblem, is_zero: Tensor, always: bool) -> Tensor | None:
    """Return y ≥ 0 [..., K] of the projection h_0 / s + Σ y_i h_i on {d : h_i·d ≥ 0}, or None if it is not needed."""
    if not always and known_true(~is_zero):
        return None
    if problem.G.shape[-1] > EXACT:
        return interior.project(problem.G, problem.target, None if always else is_zero)
    return project_on_faces(problem.G, problem.target, list_faces(problem.G))


def certify(
    problem: BallProblem, mixture: Tensor, products: Tensor, norm: Tensor, is_zero: Tensor, projection: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return min_i h_i·d(π) and the gap q(π) − min_i h_i·d(π), [..., 1] each, in units of G."""
    q = (problem.b * mixture).sum(-1, keepdim=True) + problem.radius * norm
    change = problem.radius * products / norm  # h_i·(d − h_0) / s
    if projection is not None:
        # If h_π = 0, ‖h_π‖ has many subgradients. The best one gives the projection, if it is in the ball.
        aligned, square = (part.squeeze(-2) for part in inner_products(projection.unsqueeze(-2), problem.G))
        shrink = (problem.radius / square.sqrt().clamp(min=1e-150)).clamp(max=1)
        change = torch.where(is_zero, shrink * aligned, change)
        q = torch.where(is_zero, 0.0, q)
    worst = (problem.target + change).amin(-1, keepdim=True)
    unit = problem.centre_norm * problem.scale
    return unit * worst, unit * (q - worst).clamp(min=0) * (problem.radius > 0)
