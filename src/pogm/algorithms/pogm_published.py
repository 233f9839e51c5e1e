"""POGM as its authors published it: their sweep code, their measurement code, and the numbers of the text."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from pogm.algorithms.pogm import POGM
from pogm.core.hyperparameters import Choice, hyper
from pogm.pareto import Solution, gap, official_weights, solve
from pogm.pareto.problem import Centre


@dataclass(frozen=True)
class OfficialPOGM(POGM):
    r"""POGM as the authors' code has it (class ``CAG1``, named in their sweep scripts and committed results).

    .. math:: \theta \leftarrow \theta + \frac{\alpha}{1 + \kappa^2} \sum_i
        \left(\tfrac1K + \kappa \frac{\|h_0\|}{\|h_\pi\|} \pi_i\right) h_i, \qquad h_0 = \tfrac1K \sum_i h_i

    The ball is around the mean of the trajectories, π comes from twenty steps of gradient descent instead of an exact
    solver (see `pogm.pareto.official_weights`), and the direction is divided by 1 + κ².
    """

    kappa: float = hyper(0.5, Choice(0.05, 0.1, 0.5), least=0, draw_as="pogm_kappa")
    _: KW_ONLY
    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # alpha
    centre: str = hyper("mean", options=("mean",))
    rescale: str = hyper("none", options=("none",))  # beyond the published one
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """The authors' descent on the logits of π; the gap says how far it is from the optimum."""
        return _as_solution(gram, *official_weights(gram, self.kappa), self.kappa)


@dataclass(frozen=True)
class MeasurementPOGM(POGM):
    r"""POGM as the authors' measurement branch has it (class ``CAG_T``, the code behind the paper's figures).

    .. math:: \theta \leftarrow \theta + \alpha \left(h_0 + \frac{\kappa}{1 + \kappa^2}
        \frac{\|h_0\|}{\|h_\pi\|} h_\pi\right), \qquad h_0 = \theta_{ERM} - \theta

    The ball is around the trajectory of a copy that Adam trains on all domains, π comes from thirty steps of gradient
    descent with momentum 0.1, and only the second term is divided by 1 + κ². That the descent uses the inner products
    with this h_0, and not with the mean of the h_i, is our reading: no description of the code says it.
    """

    kappa: float = hyper(0.5, Choice(0.05, 0.1, 0.5), least=0, draw_as="pogm_kappa")
    _: KW_ONLY
    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # alpha
    centre: str = hyper("erm", options=("erm",))
    rescale: str = hyper("none", options=("none",))  # beyond the published one
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """The authors' descent around their pooled copy."""
        mixture, weights = official_weights(gram, self.kappa, centre=centre, steps=30, momentum=0.1)
        return _as_solution(gram, mixture, weights, self.kappa, centre)


@dataclass(frozen=True)
class PaperTextPOGM(POGM):
    r"""POGM as the paper prints it (Do et al., ECAI): Theorem 1 with SGD, α = 0.01, κ = 0.5, E = 5.

    .. math:: \pi = \arg\min_{\pi \in \Delta} \langle h_\pi, h_0 \rangle + \sqrt{\kappa} \|h_0\| \|h_\pi\|, \qquad
        d = h_0 + \kappa \|h_0\| \frac{h_\pi}{\|h_\pi\|}

    The radius is √κ‖h_0‖ in the problem and κ‖h_0‖ in the step, so that d is not the best direction of either ball.
    With these numbers a run hardly moves: a step is at most 1.5·α·η = 1.5e-5 times a gradient on MNIST.
    """

    kappa: float = hyper(0.5, Choice(0.05, 0.1, 0.5), least=0, draw_as="pogm_kappa")
    _: KW_ONLY
    meta_lr: float = hyper(0.01, Choice(0.01, 0.1, 0.5), above=0)  # alpha
    inner_steps: int = hyper(5, Choice(1, 5, 10), least=1, draw_as="pogm_local_steps")  # E
    inner_optimizer: str = hyper("sgd", options=("adam", "sgd"))
    centre: str = hyper("mean", options=("mean",))
    rescale: str = hyper("none", options=("none",))
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """Theorem 1 as printed."""
        return solve(gram, self.kappa**0.5, step_radius=self.kappa)


def _as_solution(
    G: Tensor, mixture: Tensor, weights: Tensor, kappa: float | Tensor, centre: Centre | None = None
) -> Solution:
    """The result of a descent, with the worst alignment of its step and its distance from the optimum."""
    aligned = (G @ weights.unsqueeze(-1)).squeeze(-1)  # h_i · d
    worst = (aligned if centre is None else aligned + centre[0]).amin(-1)
    stationary = torch.zeros_like(worst, dtype=torch.bool)
    return Solution(mixture, weights, worst, gap(G, mixture, kappa, centre=centre), stationary)
