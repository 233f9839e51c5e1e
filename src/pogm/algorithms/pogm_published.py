"""Published variants of POGM: the authors' sweep code, their measurement code, and the text of the paper."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from pogm.algorithms.pogm import POGM
from pogm.core.hyperparameters import Choice, hyper
from pogm.pareto import Solution, gap, official_weights, solve
from pogm.pareto.problem import Centre


@dataclass(frozen=True)
class OfficialPOGM(POGM):
    r"""POGM of the authors' sweep code (Do et al., ECAI; class ``CAG1`` in their scripts and results).

    .. math:: \theta \leftarrow \theta + \frac{\alpha}{1 + \kappa^2} \sum_i
        \left(\tfrac1K + \kappa \frac{\|h_0\|}{\|h_\pi\|} \pi_i\right) h_i, \qquad h_0 = \tfrac1K \sum_i h_i

    The centre of the ball is the mean of the trajectories. π comes from twenty steps of gradient descent instead of an
    exact solver (see `pogm.pareto.official_weights`). The direction is divided by 1 + κ².
    """

    kappa: float = hyper(
        0.5, Choice(0.05, 0.1, 0.5), least=0, most=1000, draw_as="pogm_kappa"
    )  # κ: radius of the ball / ‖h_0‖
    _: KW_ONLY
    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # α: step size of the update
    centre: str = hyper("mean", options=("mean",))
    rescale: str = hyper("none", options=("none",))  # no scaling besides the published one
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """Run the authors' gradient descent on the logits of π. The gap measures its distance to the optimum."""
        return _as_solution(gram, *official_weights(gram, self.kappa), self.kappa)


@dataclass(frozen=True)
class MeasurementPOGM(POGM):
    r"""POGM of the authors' measurement branch (Do et al., ECAI; class ``CAG_T``, the code of their figures).

    .. math:: \theta \leftarrow \theta + \alpha \left(h_0 + \frac{\kappa}{1 + \kappa^2}
        \frac{\|h_0\|}{\|h_\pi\|} h_\pi\right), \qquad h_0 = \theta_{ERM} - \theta

    The centre of the ball is the trajectory of a copy that Adam trains on all domains. π comes from thirty steps of
    gradient descent with momentum 0.1. Only the second term is divided by 1 + κ². We assume that the descent uses the
    inner products with this h_0, and not with the mean of the h_i: no description of the code states it.
    """

    kappa: float = hyper(
        0.5, Choice(0.05, 0.1, 0.5), least=0, most=1000, draw_as="pogm_kappa"
    )  # κ: radius of the ball / ‖h_0‖
    _: KW_ONLY
    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # α: step size of the update
    centre: str = hyper("erm", options=("erm",))
    rescale: str = hyper("none", options=("none",))  # no scaling besides the published one
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """Run the authors' gradient descent, with the pooled copy as the centre."""
        mixture, weights = official_weights(gram, self.kappa, centre=centre, steps=30, momentum=0.1)
        return _as_solution(gram, mixture, weights, self.kappa, centre)


@dataclass(frozen=True)
class PaperTextPOGM(POGM):
    r"""POGM as printed in the paper (Do et al., ECAI): Theorem 1 with SGD, α = 0.01, κ = 0.5, E = 5.

    .. math:: \pi = \arg\min_{\pi \in \Delta} \langle h_\pi, h_0 \rangle + \sqrt{\kappa} \|h_0\| \|h_\pi\|, \qquad
        d = h_0 + \kappa \|h_0\| \frac{h_\pi}{\|h_\pi\|}

    The radius is √κ‖h_0‖ in the problem and κ‖h_0‖ in the step, so d is not the best direction of either ball. With
    these values the weights hardly change: a step is at most 1.5·α·η = 1.5e-5 times a gradient on MNIST.
    """

    kappa: float = hyper(
        0.5, Choice(0.05, 0.1, 0.5), least=0, most=1000, draw_as="pogm_kappa"
    )  # κ: radius of the ball / ‖h_0‖
    _: KW_ONLY
    meta_lr: float = hyper(0.01, Choice(0.01, 0.1, 0.5), above=0)  # α: step size of the update
    inner_steps: int = hyper(
        5, Choice(1, 5, 10), least=1, most=10_000, draw_as="pogm_local_steps"
    )  # E: minibatches of a copy
    inner_optimizer: str = hyper("sgd", options=("adam", "sgd"))
    centre: str = hyper("mean", options=("mean",))
    rescale: str = hyper("none", options=("none",))
    partition: str = hyper("all", options=("all",), added_later=True)

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """Solve Theorem 1 as printed, with two radii."""
        return solve(gram, self.kappa**0.5, step_radius=self.kappa)


def _as_solution(
    G: Tensor, mixture: Tensor, weights: Tensor, kappa: float | Tensor, centre: Centre | None = None
) -> Solution:
    """Return the result of a gradient descent as a `Solution`, with its worst alignment and duality gap."""
    aligned = (G @ weights.unsqueeze(-1)).squeeze(-1)  # h_i · d
    worst = (aligned if centre is None else aligned + centre[0]).amin(-1)
    stationary = torch.zeros_like(worst, dtype=torch.bool)
    return Solution(mixture, weights, worst, gap(G, mixture, kappa, centre=centre), stationary)
