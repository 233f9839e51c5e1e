"""The domain-specific gradient angle: how well each domain agrees with what the algorithm did."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pogm.algorithms.erm import ERM
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params, Tree


@dataclass(frozen=True)
class AngleProbe:
    r"""cos(h_i, h) for every training domain i.

    h is what the step did to the weights; h_i is what the same minibatches of domain i alone do to a copy of
    them, trained by the same kind of optimizer with a state of its own. A method that trains such copies itself
    (POGM) reports the angles itself, and the probe keeps out of the way.
    """

    every: int = 10  # rounds

    def start(self, state: State, problem: Problem) -> Tree:
        """One optimizer state per domain."""
        return trees.repeat(problem.optimizer.init(state.params), problem.num_domains)

    def measure(
        self, memory: Tree, before: State, after: State, batches: list[Batch], problem: Problem
    ) -> tuple[Tree, Metrics]:
        """The angles of one round."""
        follow = partial(_follow, before, problem)
        live = trees.repeat(problem.live_buffers(before), problem.num_domains)
        trajectories, memory = problem.each_domain(follow, batches, memory, live)
        step = trees.subtract(after.params, before.params)
        return memory, {"angle": cosines(trajectories, step)}


def _follow(state: State, problem: Problem, batches: list[Batch], optimizer: Tree, live: Params) -> tuple[Params, Tree]:
    copy = state._replace(optimizer=optimizer, buffers=state.buffers | live)
    for batch in batches:
        copy, _ = ERM().step(copy, [batch], problem)
    return trees.subtract(copy.params, state.params), copy.optimizer


def cosines(trajectories: Params, step: Params) -> Tensor:
    """cos(h_i, h) for each row h_i: [K]; NaN where one of the two is zero."""
    names = list(step)
    products = torch.stack([trajectories[n].flatten(1).double() @ step[n].flatten().double() for n in names]).sum(0)
    squares = torch.stack([trajectories[n].flatten(1).double().square().sum(1) for n in names]).sum(0)
    return products / (squares * trees.dot(step, step)).sqrt()
