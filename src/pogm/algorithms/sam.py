"""SAM: sharpness-aware minimization."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class SAM(Algorithm):
    r"""Sharpness-aware minimization (Foret et al., 2021): the gradient at the worst point nearby, to first order.

    .. math:: \nabla L(\theta + \epsilon), \qquad \epsilon = \rho \frac{\nabla L(\theta)}{\|\nabla L(\theta)\|}, \qquad
        L = \tfrac1K \sum_k L_k

    With ρ = 0 this is ERM. The loss that is reported, and the batch-norm statistics, are those at θ. Both passes have
    the same dropout mask. Weight decay is that of the optimizer, so it is not part of L.

    Args:
        rho: Radius ρ of the perturbation.
    """

    rho: float = hyper(0.05, Choice(0.01, 0.02, 0.05, 0.1), least=0)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the gradient at θ + ε, and the loss at θ."""
        gradient, loss = super().gradient(state, batch, problem)  # ∇L(θ)
        norm = trees.dot(gradient, gradient).sqrt()
        perturbed = trees.move(state.params, gradient, self.rho / (norm + 1e-12))  # θ + ε
        return super().gradient(state._replace(params=perturbed), batch, problem)[0], loss
