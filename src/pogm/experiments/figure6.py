"""Figure 6: POGM's direction among those of the domains, in two dimensions.

The paper shows a sketch. These directions are computed by the solver that training uses.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pogm.benchmark.results.records import Run
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.experiments.palette import DASHED, GREY, METHODS
from pogm.pareto import alignment, gramian, solve
from pogm.pareto.weightings import mgda_weights, upgrad_weights
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region

AGREEING = torch.tensor([[0.9, 0.0], [1.0, 0.55], [0.05, 0.75]], dtype=torch.float64)  # h_i: [K, 2]
CONFLICTING = torch.tensor([[1.0, 0.1], [0.35, 1.0], [-0.6, 0.25]], dtype=torch.float64)
KAPPAS = (0.05, 0.1, 0.5)  # values in the paper
KAPPA = KAPPAS[-1]
VIEW: dict[str, Any] = {"x_range": (-0.75, 1.15), "y_range": (-0.12, 1.18)}


def plan(scale: Scale) -> Plan:
    """Return no trials: the figure is computed when it is drawn."""
    return {}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return the figure, which is the same at every scale."""
    return [figure()]


def figure() -> Figure:
    """Return three panels: domains that agree, one that conflicts, and the gain of the worst domain against κ."""
    erm, pogm = (float(worst(CONFLICTING, weights(CONFLICTING)[name])) for name in ("ERM", "POGM"))
    return Figure(
        name="figure6",
        title="POGM's direction among those of the domains, in two dimensions",
        panels=(
            Panel("the domains agree", tuple(geometry(AGREEING)), "", "", **VIEW, square=True),
            Panel("one domain conflicts", tuple(geometry(CONFLICTING)), "", "", **VIEW, square=True),
            Panel("the worst domain", tuple(gains(CONFLICTING)), "κ", "minᵢ hᵢ·d / ‖h₀‖²"),
        ),
        explanation=(
            "Each grey arrow is the update hᵢ of one domain; the triangle contains all mixtures of them. ERM takes "
            "their mean h₀. POGM takes the direction in the ball around h₀ that maximises the smallest inner product "
            "with a domain; it lies on the boundary of the ball, towards the worst mixture. If the domains agree, "
            "both steps help all of them, and POGM moves towards the domain that ERM helps least. If one domain "
            f"conflicts, the step of ERM hurts it (h₃·d = −{abs(erm):.2f} ‖h₀‖²), and the step of POGM with κ = "
            f"{KAPPA:g} does not (+{pogm:.2f} ‖h₀‖²). A larger ball gives the worst domain more, and a step further "
            "from the mean."
        ),
        notes=(
            f"Computed by pogm.pareto.solve, as in training; the large ball and the arrow have κ = {KAPPA:g}, "
            f"the smaller balls κ = {KAPPAS[0]:g} and {KAPPAS[1]:g}.",
            "MGDA takes the shortest mixture. UPGrad projects each update onto the dual cone (vectors that conflict "
            "with no update) and takes the mean; if the domains agree, that is the direction of ERM, whose arrow "
            "covers it. Neither has a κ.",
        ),
    )


def weights(updates: Tensor, kappa: float = KAPPA) -> dict[str, Tensor]:
    """Return the weights c_i of the direction Σ c_i h_i of every method: [K] each."""
    G = gramian(updates)
    return {
        "ERM": torch.full_like(G[0], 1 / len(G)),
        "POGM": solve(G, kappa).weights,
        "MGDA": mgda_weights(G),
        "UPGrad": upgrad_weights(G),
    }


def worst(updates: Tensor, chosen: Tensor) -> Tensor:
    """Return the smallest inner product of a direction and a domain, min_i h_i·d, in units of ‖h_0‖²."""
    return alignment(gramian(updates), chosen).min() / updates.mean(0).square().sum()


def geometry(updates: Tensor) -> Iterator[Mark]:
    """Yield the updates of the domains, their hull, the ball, and the direction of every method."""
    centre = updates.mean(0)  # h_0
    turns = torch.linspace(0, 2 * math.pi, 73, dtype=torch.float64)
    circle = torch.stack([turns.cos(), turns.sin()], -1)
    yield Region("their mixtures", points(updates), GREY)
    for kappa in reversed(KAPPAS):
        yield Region("POGM's ball", points(centre + kappa * centre.norm() * circle), METHODS["POGM"] + DASHED)
    for number, update in enumerate(updates, start=1):
        yield Arrow("domains", from_origin(update), GREY)
        yield Label(f"h{'₀₁₂₃'[number]}", points((update + 0.09 * update / update.norm())[None]), GREY)
    for name, chosen in reversed(weights(updates).items()):
        yield Arrow(name, from_origin(chosen @ updates), METHODS[name])
    least = solve(gramian(updates), KAPPA).mixture  # π̃
    yield Cloud("the worst mixture", points((least @ updates)[None]), METHODS["POGM"])


def gains(updates: Tensor) -> Iterator[Mark]:
    """Yield the gain of the worst domain against the radius of the ball, for every method."""
    radii = torch.linspace(0, 1, 41, dtype=torch.float64).tolist()
    for name in METHODS:
        if name in weights(updates):
            found = [float(worst(updates, weights(updates, kappa)[name])) for kappa in radii]
            yield Line(name, tuple(map(Point, radii, found)), METHODS[name])
    tried = [(kappa, float(worst(updates, weights(updates, kappa)["POGM"]))) for kappa in KAPPAS]
    yield Cloud("POGM", tuple(Point(*pair) for pair in tried), METHODS["POGM"])


def from_origin(tip: Tensor) -> tuple[Point, ...]:
    """Return the two ends of a vector."""
    return Point(0.0, 0.0), *points(tip[None])


def points(positions: Tensor) -> tuple[Point, ...]:
    """Return rows [N, 2] as points."""
    return tuple(Point(across, up) for across, up in positions.tolist())
