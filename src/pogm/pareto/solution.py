"""The inner problem of POGM, solved: the worst mixture, the weights of the step, and what they are worth."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pogm.pareto import faces, interior
from pogm.pareto.problem import Centre, Problem, cancels, images, normalised, relative_radius

EXACT = 8  # up to this many domains all 2^K - 1 faces are solved at once

Stationary = Literal["keep", "project"]


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
    stationary: Stationary = "keep",
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
    problem = normalised(G, radius, centre)
    reach = problem.radius if step_radius is None else relative_radius(step_radius, problem.G)
    K = G.shape[-1]

    mixture = minimiser(problem)
    pointless = (problem.radius == 0) | (problem.length == 0)  # the ball is a point: any mixture will do
    mixture = torch.where(pointless, 1 / K, mixture)

    products, length, nothing = measured(mixture, problem)
    correction = escape(problem, nothing, always=stationary == "project")
    worst, gap = certificate(problem, mixture, products, length, nothing, correction)

    weights = reach * problem.length * mixture / length.clamp(min=1e-300)
    at_rest = problem.length * correction if stationary == "project" else torch.zeros_like(weights)
    weights = torch.where(nothing, at_rest, weights)
    weights = torch.where(problem.length == 0, 0.0, weights) + (1 / K if centre is None else 0.0)
    flag = nothing | (problem.length == 0)
    return Solution(mixture, weights, worst.squeeze(-1), gap.squeeze(-1), flag.squeeze(-1))


def minimiser(problem: Problem) -> Tensor:
    """π̃ [..., K], by the method that suits K."""
    G, b = problem.present()
    K = G.shape[-1]
    if K > EXACT:
        return interior.interior(G, b, problem.radius)
    return faces.best_on_faces(G, b, problem.radius, faces.every_face(K, G.device))


def measured(mixture: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """G π [..., K], ν [..., 1], and whether ν is zero up to rounding [..., 1], in a ball that is not a point."""
    products, length = images(mixture.unsqueeze(-2), problem.G)
    nothing = cancels(mixture.unsqueeze(-2), length, problem.G).squeeze(-2)
    return products.squeeze(-2), length.squeeze(-2), nothing & (problem.radius > 0) & (problem.length > 0)


def escape(problem: Problem, nothing: Tensor, always: bool) -> Tensor:
    """The y of the nearest direction ĥ_0 + Σ y_i h_i that hurts no domain; zeros where nobody will ask for it."""
    if not always and known_false(nothing):
        return torch.zeros_like(problem.b)
    G, b = problem.present()
    K = G.shape[-1]
    return interior.projection(G, b) if K > EXACT else faces.projection_on_faces(G, b, faces.every_face(K, G.device))


def known_false(flags: Tensor) -> bool:
    """Whether no flag is set, where that can be known without waiting: on the CPU, outside of transforms."""
    if flags.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return not flags.any()
    except RuntimeError:  # under vmap a flag has as many values as there are trials
        return False


def certificate(
    problem: Problem, mixture: Tensor, products: Tensor, length: Tensor, nothing: Tensor, correction: Tensor
) -> tuple[Tensor, Tensor]:
    """min_i h_i·d(π) and how far q(π) is above it, [..., 1] each, in the units of G."""
    level = (problem.b * mixture).sum(-1, keepdim=True) + problem.radius * length
    alignment = problem.b + problem.radius * products / length.clamp(min=1e-300)
    # at h_π = 0 the norm has many gradients; the best of them leads to the projection, if that is in the ball
    pull, size = images(correction.unsqueeze(-2), problem.G)
    shrink = (problem.radius / size.squeeze(-2).clamp(min=1e-300)).clamp(max=1)
    alignment = torch.where(nothing, problem.b + shrink * pull.squeeze(-2), alignment)
    alignment = torch.where(problem.radius == 0, problem.b, alignment)
    worst = torch.where(problem.absent, problem.far, alignment).amin(-1, keepdim=True)
    gap = (torch.where(nothing, 0.0, level) - worst).clamp(min=0)
    unit = problem.length * problem.scale
    return unit * worst, unit * torch.where(problem.radius == 0, 0.0, gap)
