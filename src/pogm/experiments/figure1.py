"""Figure 1: Fish's fluctuation, in two dimensions.

The paper shows a sketch. This figure runs the methods on a model with two weights: linear regression in three domains,
so the risk of every domain is quadratic. All methods use plain gradient descent on all of the data; the only random
part is the order in which Fish visits the domains.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
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
from pogm.engine.per_domain import gradient, map_by_loop
from pogm.experiments.base import Exhibit, Plan, Scale
from pogm.experiments.palette import DASHED, GREY, METHODS
from pogm.report.figure import Arrow, Cloud, Figure, Label, Line, Mark, Panel, Point, Region

CENTRES = ((-2.2, -0.4), (1.9, -0.9), (0.2, 1.9))  # minimum of the risk of each domain
STEEP = (30.0, 150.0, 90.0)  # degrees: the direction of the larger curvature
CURVATURES = (1.0, 0.15)  # in that direction, and orthogonal to it
START = (-2.6, 2.7)
RATE = 0.5  # η
ROUNDS = 40
WEIGHTS = "head.weight"
ORDERS = tuple(permutations(range(len(CENTRES))))

Weights = tuple[float, float]


def plan(scale: Scale) -> Plan:
    """Return no trials: the figure is computed when it is drawn."""
    return {}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return the figure, which is the same at every scale."""
    return [figure()]


def figure() -> Figure:
    """Return three panels: one round from one point, many rounds, and the cosine of successive steps."""
    paths = {type(method).__name__: path(method) for method in (Fish(), ERM(), POGM())}
    turns = {name: cosines(visited) for name, visited in paths.items()}
    means = ", ".join(f"{name} {fmean(found):.2f}".replace("-", "−") for name, found in turns.items())
    return Figure(
        name="figure1",
        title="Fish's fluctuation, in two dimensions",
        panels=(
            Panel("one round, from one point", tuple(one_round()), "θ₁", "θ₂", (-3.3, 0.3), (-0.2, 3.0), square=True),
            Panel(f"{ROUNDS} rounds", tuple(all_rounds(paths)), "θ₁", "θ₂", (-3.1, 2.6), (-2.2, 2.9), square=True),
            Panel(
                "successive steps",
                tuple(Line(name, points(enumerate(found, start=2)), METHODS[name]) for name, found in turns.items()),
                "round",
                "cosine",
                y_range=(-1.08, 1.08),
            ),
        ),
        explanation=(
            "Fish visits the domains one after the other, then moves half of the way to the last point. The last "
            "point depends on the order, so from one point, on the same data, Fish has six possible steps; ERM and "
            "POGM have one. Far from the minimum of the mean risk, all three descend. Near it, Fish oscillates, "
            "while ERM and POGM do not. POGM first moves towards the minimum of the domain that agrees least, then "
            "converges more slowly, and ends where ERM ends."
        ),
        notes=(
            f"Linear regression with two weights in three domains, plain gradient descent on all of the data with "
            f"learning rate {RATE:g}; the methods have their default hyperparameters.",
            f"From the first point, the standard deviation of Fish's six steps is {spread(RATE):.0%} of their mean "
            f"length, and {spread(RATE / 10):.0%} with a tenth of the learning rate. The fluctuation is of second "
            "order in the learning rate, which is large here so that it is visible.",
            f"Mean cosine of successive steps, over {ROUNDS} rounds: {means}.",
        ),
    )


# The problem: three quadratic risks.


def domains() -> Batch:
    """Return two noiseless samples of each domain, along the axes of its risk: x [K, 2, 2], y [K, 2]."""
    angles = torch.tensor(STEEP, dtype=torch.float64).deg2rad()
    cos, sin = angles.cos(), angles.sin()
    axes = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], 1)
    x = axes * (2 * torch.tensor(CURVATURES, dtype=torch.float64)).sqrt().unsqueeze(-1)
    return Batch(x, (x @ torch.tensor(CENTRES, dtype=torch.float64).unsqueeze(-1)).squeeze(-1))


def risks(model: Model, batch: Batch) -> Tensor:
    """Return half the mean squared error of every domain: [K]."""
    return (over_samples(model, batch.x).squeeze(-1) - batch.y).square().mean(1) / 2


def start(algorithm: Algorithm, rate: float = RATE, seed: int = 0) -> tuple[State, Problem]:
    """Return the first state of an algorithm, and the problem with plain gradient descent as the optimizer."""
    problem = Problem(
        network=Network(nn.Identity(), nn.Linear(2, 1, bias=False)).double(),
        optimizer=SGD(rate),
        num_domains=len(CENTRES),
        num_classes=1,
        gradient=gradient,
        each_domain=map_by_loop,
        custom_risks=risks,
    )
    weights = {WEIGHTS: torch.tensor([START], dtype=torch.float64)}
    return algorithm.start(weights, {}, random.key(seed), problem), problem


def read_weights(state: State) -> Weights:
    """Return the two weights."""
    first, second = state.params[WEIGHTS].flatten().tolist()
    return first, second


# Steps of the methods.


def path(algorithm: Algorithm, seed: int = 0, rounds: int = ROUNDS) -> list[Weights]:
    """Return the weights after every round of an algorithm."""
    state, problem = start(algorithm, seed=seed)
    visited = [read_weights(state)]
    for _ in range(rounds):
        state, _ = algorithm.step(state, [domains()] * algorithm.minibatches, problem)
        visited.append(read_weights(state))
    return visited


def walk(order: Sequence[int]) -> list[Weights]:
    """Return the weights during one round of Fish: a step of ERM on each domain, in this order."""
    state, problem = start(ERM())
    visited = [read_weights(state)]
    for domain in order:
        state, _ = ERM().step(state, [in_order([domain])], problem)
        visited.append(read_weights(state))
    return visited


def step_of_fish(order: Sequence[int], rate: float = RATE) -> Weights:
    """Return the weights after a round of Fish with this order of the domains."""
    fish = Fish(permute=False)
    state, problem = start(fish, rate)
    state, _ = fish.step(state, [in_order(order)], problem)
    return read_weights(state)


def in_order(order: Sequence[int]) -> Batch:
    """Return the samples of some domains, in this order."""
    return Batch(*(part[list(order)] for part in domains()))


def spread(rate: float) -> float:
    """Return the standard deviation of Fish's steps over all orders, relative to the length of their mean."""
    ends = torch.tensor([step_of_fish(order, rate) for order in ORDERS], dtype=torch.float64)
    steps = ends - torch.tensor(START, dtype=torch.float64)
    mean = steps.mean(0)
    return float((steps - mean).square().sum(1).mean().sqrt() / mean.norm())


def cosines(visited: Sequence[Weights]) -> list[float]:
    """Return the cosine of every step and the step before it."""
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(visited)]
    return [(u[0] * v[0] + u[1] * v[1]) / (math.hypot(*u) * math.hypot(*v)) for u, v in pairwise(steps)]


# Drawing.


def one_round() -> Iterator[Mark]:
    """Yield two rounds of Fish in detail, its six possible steps, and the steps of ERM and POGM."""
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


def all_rounds(paths: dict[str, list[Weights]]) -> Iterator[Mark]:
    """Yield the paths, the level lines of the mean risk, and the minimum of every domain."""
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
    for name, visited in paths.items():
        yield Line(name, points(visited), METHODS[name])
        yield Cloud(name, points(visited), METHODS[name])


def points(visited: Iterable[Sequence[float]]) -> tuple[Point, ...]:
    """Return pairs of numbers as points."""
    return tuple(Point(across, up) for across, up in visited)
