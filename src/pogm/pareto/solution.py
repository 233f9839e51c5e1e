"""The inner problem of POGM, solved: the worst mixture, the weights of the step, and what they are worth."""

from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core.compilation import known_true
from pogm.pareto import active_set, interior
from pogm.pareto.face_enumeration import best_on_faces, every_face, projection_on_faces
from pogm.pareto.problem import Centre, Problem, cancels, images, normalised, relative_radius

EXACT = 8  # up to this many domains all 2^K - 1 faces are solved at once


class Solution(NamedTuple):
    """All that is known of a solved problem; tensors on the device of G, so reading none of it waits."""

    mixture: Tensor  # [..., K]: π̃
    weights: Tensor  # [..., K]: c, with d = Σ c_i h_i (plus h_0, for another centre)
    worst: Tensor  # [...]: p*, the largest min_i h_i·d in the ball; zero updates are not counted
    gap: Tensor  # [...]: certified distance of q(π̃) from p*, absolute; see `pogm.pareto.gap`
    stationary: Tensor  # [...]: bool; h_π̃ = 0 as far as float64 can tell, so that no step helps every domain


def solve(
    G: Tensor,
    radius: float | Tensor,
    *,
    centre: Centre | None = None,
    step_radius: float | Tensor | None = None,
    stationary: str = "keep",
) -> Solution:
    r"""Solve the max-min problem over the ball around h_0, from the inner products G of the updates.

    .. math:: \max_{\|d - h_0\| \le r \|h_0\|} \min_i h_i^\top d
              \;=\; \min_{\pi\in\Delta} \; h_\pi^\top h_0 + r \|h_0\| \|h_\pi\|.

    Exact for K ≤ 8, iterative with a fixed count beyond; never waits for the device, and works under `vmap` and in
    a CUDA graph. Gradients do not flow through it. A G that is not finite gives weights that are NaN. How well the
    optimum is met is limited by the rounding of G itself, to about 1e-16 / ν² with ν = ‖h_π̃‖ relative to ‖h_i‖.

    Args:
        G: [..., K, K], as from `pogm.pareto.gramian`.
        radius: r, relative to ‖h_0‖; a tensor [...] where the problems of a batch differ in it.
        centre: `(h_i·h_0 [..., K], ‖h_0‖² [...])` of a ball around something else than the mean update.
        step_radius: r of the step where it is not that of the problem, as in Theorem 1 as printed.
        stationary: d where h_π̃ = 0: "keep" h_0, or "project" it on the directions that hurt no domain.
    """
    if stationary not in ("keep", "project"):
        raise ValueError(f'expected stationary="keep" or "project", found {stationary!r}')
    fits = centre is None or centre[0].shape == G.shape[:1]
    if fits and active_set.applies(G, radius, 0.0 if step_radius is None else step_radius):
        step = radius if step_radius is None else step_radius
        found = active_set.solution(G, radius, step, centre)  # type: ignore[arg-type]
        if found is not None:
            mixture, weights, worst, gap = (torch.tensor(part, dtype=torch.float64) for part in found)
            return Solution(mixture, weights, worst, gap, stationary=torch.tensor(False))
    problem = normalised(G, radius, centre)
    reach = problem.radius if step_radius is None else relative_radius(step_radius, problem.G)
    K = G.shape[-1]

    mixture = torch.where(problem.ball > 0, minimiser(problem), 1 / K)  # in a ball that is a point any will do
    products, length, nothing = measured(mixture, problem)
    correction = escape(problem, nothing, always=stationary == "project")
    worst, gap = certificate(problem, mixture, products, length, nothing, correction)

    weights = reach * problem.length * mixture / length
    if correction is not None:
        weights = torch.where(nothing, problem.length * correction if stationary == "project" else 0.0, weights)
    flag = nothing | (problem.length == 0)
    if centre is None:
        weights = weights + 1 / K
    return Solution(mixture, weights, worst.squeeze(-1), gap.squeeze(-1), flag.squeeze(-1))


def minimiser(problem: Problem) -> Tensor:
    """π̃ [..., K], by the method that suits K."""
    if problem.G.shape[-1] > EXACT:
        return interior.interior(problem.G, problem.target, problem.radius)
    return best_on_faces(problem.G, problem.target, problem.radius, every_face(problem.G))


def measured(mixture: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """G π [..., K], ν > 0 [..., 1], and whether ν is zero up to rounding [..., 1], in a ball that is not a point."""
    products, square = images(mixture.unsqueeze(-2), problem.G)
    nothing = cancels(mixture.unsqueeze(-2), square, problem.G).squeeze(-2) & (problem.ball > 0)
    return products.squeeze(-2), square.squeeze(-2).sqrt().clamp(min=1e-150), nothing


def escape(problem: Problem, nothing: Tensor, always: bool) -> Tensor | None:
    """The y of the nearest direction ĥ_0 + Σ y_i h_i that hurts no domain; None where nobody will ask for it."""
    if not always and known_true(~nothing):
        return None
    if problem.G.shape[-1] > EXACT:
        return interior.projection(problem.G, problem.target)
    return projection_on_faces(problem.G, problem.target, every_face(problem.G))


def certificate(
    problem: Problem, mixture: Tensor, products: Tensor, length: Tensor, nothing: Tensor, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """min_i h_i·d(π) and how far q(π) is above it, [..., 1] each, in the units of G."""
    level = (problem.b * mixture).sum(-1, keepdim=True) + problem.radius * length
    turn = problem.radius * products / length
    if correction is not None:
        # at h_π = 0 the norm has many gradients; the best of them leads to the projection, if that is in the ball
        pull, square = (part.squeeze(-2) for part in images(correction.unsqueeze(-2), problem.G))
        shrink = (problem.radius / square.sqrt().clamp(min=1e-150)).clamp(max=1)
        turn = torch.where(nothing, shrink * pull, turn)
        level = torch.where(nothing, 0.0, level)
    worst = (problem.target + turn).amin(-1, keepdim=True)
    unit = problem.length * problem.scale
    return unit * worst, unit * (level - worst).clamp(min=0) * (problem.radius > 0)
