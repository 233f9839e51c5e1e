"""SAGM: a flat minimum, and gradients that lead there."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class SAGM(Algorithm):
    r"""Sharpness-aware gradient matching (Wang et al., 2023): the loss here, and at a worse point nearby.

    .. math:: \tfrac12 \nabla L(\theta) + \tfrac12 \nabla L(\theta + \epsilon), \qquad
        \epsilon = \Big(\frac{\rho}{\|\nabla L(\theta)\|} - \alpha\Big) \nabla L(\theta), \qquad
        L = \tfrac1K \sum_k L_k

    At ρ = α = 0 this is ERM. Both passes have the same dropout mask, in the authors' code two; the second leaves no
    trace in batch-norm statistics. The authors' code searches ρ but then uses 0.05 whatever was drawn; here the drawn
    value is used. Its range for α lies above its default. For OfficeHome and DomainNet the authors set α = 0.0005.
    """

    rho: float = hyper(0.05, Choice(0.01, 0.02, 0.05, 0.1), least=0)
    alpha: float = hyper(0.001, Choice(0.01, 0.02, 0.05, 0.1), least=0)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """The mean of the gradients at two points."""
        here, loss = super().gradient(state, batch, problem)
        norm = trees.dot(here, here).sqrt()
        nearby = trees.move(state.params, here, self.rho / (norm + 1e-12) - self.alpha)  # θ + ε
        there, _ = super().gradient(state._replace(params=nearby), batch, problem)
        return trees.map_leaves(lambda a, b: (a + b) / 2, here, there), loss
