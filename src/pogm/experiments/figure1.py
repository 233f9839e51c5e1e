"""Figure 1: Fish's fluctuation, in two dimensions.

The paper draws a sketch; this is the methods themselves, on a model of two weights: linear regression in three domains,
so that every domain's risk is a bowl. All take plain gradient steps on all of the data: nothing is random but the order
in which Fish visits the domains.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from statistics import fmean

import torch
from torch import Tensor, nn

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.fish import Fish
from pogm.algorithms.pogm import POGM
from pogm.benchmark.results.records import Run
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizers import SGD
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.engine.per_domain import gradient, in_a_loop
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.experiments.palette import DASHED, GREY, METHODS
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region

CENTRES = ((-2.2, -0.4), (1.9, -0.9), (0.2, 1.9))  # where each domain's risk is least
STEEP = (30.0, 150.0, 90.0)  # degrees: the direction in which it is steep
CURVATURES = (1.0, 0.15)  # there, and across
START = (-2.6, 2.7)
RATE = 0.5  # η
ROUNDS = 40
WEIGHTS = "head.weight"
ORDERS = tuple(permutations(range(len(CENTRES))))

Place = tuple[float, float]


def plan(scale: Scale) -> Plan:
    """Nothing to run: it is computed as it is drawn."""
    return {}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """The drawing, which is the same at every scale."""
    return [figure()]


def figure() -> Figure:
    """One round from one point; where many rounds lead; and how a step goes with the one before."""
    paths = {type(method).__name__: path(method) for method in (Fish(), ERM(), POGM())}
    turns = {name: cosines(places) for name, places in paths.items()}
    means = ", ".join(f"{name} {fmean(found):.2f}".replace("-", "−") for name, found in turns.items())
    return Figure(
        name="figure1",
        title="Fish's fluctuation, in two dimensions",
        panels=(
            Panel("one round, from one point", tuple(one_round()), "θ₁", "θ₂", (-3.3, 0.3), (-0.2, 3.0), square=True),
            Panel(f"{ROUNDS} rounds", tuple(all_rounds(paths)), "θ₁", "θ₂", (-3.1, 2.6), (-2.2, 2.9), square=True),
            Panel(
                "a step and the one before it",
                tuple(Line(name, numbered(found, first=2), METHODS[name]) for name, found in turns.items()),
                "round",
                "cosine",
                y_range=(-1.08, 1.08),
            ),
        ),
        reading=(
            "Fish walks through the domains one after the other, then goes half of the way to where the walk ended. "
            "The walk ends elsewhere in another order, so from one point, on the same data, Fish may take any of six "
            "steps; ERM and POGM take one. Far from the minimum of the mean risk all three come down; near it Fish "
            "goes to and fro, while ERM and POGM keep their course. POGM starts towards what the worst-off domain "
            "asks for, then comes in more slowly, and ends where ERM ends."
        ),
        notes=(
            f"Linear regression with two weights in three domains, plain gradient descent of rate {RATE:g} on all of "
            "the data; the code of the methods, and their defaults.",
            f"From the first point Fish's six steps spread by {spread(RATE):.0%} of their mean length; at a tenth of "
            f"the rate by {spread(RATE / 10):.0%}. The fluctuation is of second order in the rate, which is high here "
            "for it to be seen.",
            f"Mean cosine of a step and the one before it, over {ROUNDS} rounds: {means}.",
        ),
    )


# The problem: three bowls.


def domains() -> Batch:
    """Two noiseless samples of each domain, along the axes of its bowl: x [K, 2, 2], y [K, 2]."""
    angles = torch.tensor(STEEP, dtype=torch.float64).deg2rad()
    cos, sin = angles.cos(), angles.sin()
    axes = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], 1)
    x = axes * (2 * torch.tensor(CURVATURES, dtype=torch.float64)).sqrt().unsqueeze(-1)
    return Batch(x, (x @ torch.tensor(CENTRES, dtype=torch.float64).unsqueeze(-1)).squeeze(-1))


def risks(model: Model, batch: Batch) -> Tensor:
    """Half the mean squared error of every domain: [K]."""
    return (over_samples(model, batch.x).squeeze(-1) - batch.y).square().mean(1) / 2


def started(algorithm: Algorithm, rate: float = RATE, seed: int = 0) -> tuple[State, Problem]:
    """The algorithm at its first point, with plain gradient descent for an optimizer."""
    problem = Problem(
        network=Network(nn.Identity(), nn.Linear(2, 1, bias=False)).double(),
        optimizer=SGD(rate),
        num_domains=len(CENTRES),
        num_classes=1,
        gradient=gradient,
        each_domain=in_a_loop,
        replacement=risks,
    )
    weights = {WEIGHTS: torch.tensor([START], dtype=torch.float64)}
    return algorithm.start(weights, {}, random.key(seed), problem), problem


def place(state: State) -> Place:
    """The two weights."""
    first, second = state.params[WEIGHTS].flatten().tolist()
    return first, second


# What the methods do there.


def path(algorithm: Algorithm, seed: int = 0, rounds: int = ROUNDS) -> list[Place]:
    """Where an algorithm goes, round by round."""
    state, problem = started(algorithm, seed=seed)
    places = [place(state)]
    for _ in range(rounds):
        state, _ = algorithm.step(state, [domains()] * algorithm.minibatches, problem)
        places.append(place(state))
    return places


def walk(order: Sequence[int]) -> list[Place]:
    """Fish's walk through the domains in an order: a step of ERM on each."""
    state, problem = started(ERM())
    places = [place(state)]
    for domain in order:
        state, _ = ERM().step(state, [in_order([domain])], problem)
        places.append(place(state))
    return places


def step_of_fish(order: Sequence[int], rate: float = RATE) -> Place:
    """Where a round of Fish leads that draws this order."""
    fish = Fish(permute=False)
    state, problem = started(fish, rate)
    state, _ = fish.step(state, [in_order(order)], problem)
    return place(state)


def in_order(order: Sequence[int]) -> Batch:
    """Some of the domains, in an order."""
    return Batch(*(part[list(order)] for part in domains()))


def spread(rate: float) -> float:
    """How far Fish's steps in the different orders are from their mean, as a share of its length."""
    ends = torch.tensor([step_of_fish(order, rate) for order in ORDERS], dtype=torch.float64)
    steps = ends - torch.tensor(START, dtype=torch.float64)
    mean = steps.mean(0)
    return float((steps - mean).square().sum(1).mean().sqrt() / mean.norm())


def cosines(places: Sequence[Place]) -> list[float]:
    """The cosine of every step and the one before it."""
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(places)]
    return [(u[0] * v[0] + u[1] * v[1]) / (math.hypot(*u) * math.hypot(*v)) for u, v in pairwise(steps)]


# How they are drawn.


def one_round() -> Iterator[Mark]:
    """Two of Fish's walks, the six steps that its six walks lead to, and the steps of ERM and POGM."""
    for order, above in ((ORDERS[0], 0.18), (ORDERS[-1], -0.2)):
        stops = walk(order)
        yield Line("Fish's walk", points(stops), METHODS["Fish"] + DASHED)
        yield Cloud("Fish's walk", points(stops[1:]), METHODS["Fish"] + DASHED)
        (across, up), name = stops[-1], "→".join(str(domain + 1) for domain in order)
        yield Label(name, (Point(across, up + above),), METHODS["Fish"])
    for order in ORDERS:
        yield Arrow("Fish", points([START, step_of_fish(order)]), METHODS["Fish"])
    for algorithm in (ERM(), POGM()):
        name = type(algorithm).__name__
        yield Arrow(name, points(path(algorithm, rounds=1)), METHODS[name])


def all_rounds(paths: dict[str, list[Place]]) -> Iterator[Mark]:
    """The paths, over level lines of the mean risk and every domain's own minimum."""
    x, y = domains()
    curvature = (x.mT @ x).mean(0) / x.shape[1]  # of the mean risk
    bottom = torch.linalg.solve(curvature, (x.mT @ y.unsqueeze(-1)).mean(0) / x.shape[1]).squeeze(-1)
    turns = torch.linspace(0, 2 * math.pi, 61, dtype=torch.float64)
    circle = torch.stack([turns.cos(), turns.sin()])
    ring = torch.linalg.solve(torch.linalg.cholesky(curvature).mT, circle)  # the level ½ above the bottom
    for size in (1.6, 1.0, 0.4):
        yield Region("level lines of the mean risk", points((bottom.unsqueeze(-1) + size * ring).T.tolist()), GREY)
    yield Cloud("minimum of a domain", points(CENTRES), GREY)
    for number, (across, up) in enumerate(CENTRES, start=1):
        yield Label(str(number), (Point(across, up + 0.28),), GREY)
    for name, places in paths.items():
        yield Line(name, points(places), METHODS[name])
        yield Cloud(name, points(places), METHODS[name])


def points(places: Sequence[Sequence[float]]) -> tuple[Point, ...]:
    """Pairs of numbers as points."""
    return tuple(Point(across, up) for across, up in places)


def numbered(values: Sequence[float], first: int) -> tuple[Point, ...]:
    """A value for each round from the first on."""
    return tuple(Point(number, value) for number, value in enumerate(values, start=first))
