"""SAGM: sharpness-aware gradient matching."""

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
    r"""Sharpness-aware gradient matching (Wang et al., 2023): the mean gradient at θ and at a perturbed point.

    .. math:: \tfrac12 \nabla L(\theta) + \tfrac12 \nabla L(\theta + \epsilon), \qquad
        \epsilon = \Big(\frac{\rho}{\|\nabla L(\theta)\|} - \alpha\Big) \nabla L(\theta), \qquad
        L = \tfrac1K \sum_k L_k

    With ρ = α = 0 this is ERM. The second pass does not update batch-norm statistics. Differences from the code of the
    authors: both passes have the same dropout mask (there, two masks); the search over ρ has an effect (there, ρ = 0.05
    is used for every drawn value). The published search range of α lies above its default. The authors set α = 0.0005
    for OfficeHome and DomainNet.

    Args:
        rho: Radius ρ of the perturbation.
        alpha: Step size α of the descent part of the perturbation.
    """

    rho: float = hyper(0.05, Choice(0.01, 0.02, 0.05, 0.1), least=0)
    alpha: float = hyper(0.001, Choice(0.01, 0.02, 0.05, 0.1), least=0)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the mean of the gradients at θ and θ + ε."""
        gradient, loss = super().gradient(state, batch, problem)  # ∇L(θ)
        norm = trees.dot(gradient, gradient).sqrt()
        perturbed = trees.move(state.params, gradient, self.rho / (norm + 1e-12) - self.alpha)  # θ + ε
        perturbed_gradient, _ = super().gradient(state._replace(params=perturbed), batch, problem)
        return trees.map_leaves(lambda a, b: (a + b) / 2, gradient, perturbed_gradient), loss
