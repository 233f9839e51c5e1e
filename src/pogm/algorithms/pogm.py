"""Pareto optimal gradient matching, the paper's method."""

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from torch import Tensor

from pogm.algorithms.rounds import FORMER_OPTIONS, Direction, DomainRounds, solution_metrics
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.state import State
from pogm.pareto import Solution, solve
from pogm.pareto.problem import Centre


class KappaWarning(UserWarning):
    """The ball is so large (κ ≥ 1) that a step in it may increase the mean loss."""


@dataclass(frozen=True)
class POGM(DomainRounds):
    r"""Pareto optimal gradient matching (Do et al., ECAI): maximise the worst agreement with all domains.

    With the trajectories :math:`h_i` of the domains and the ERM trajectory :math:`h_0`, Theorem 1:

    .. math:: \theta \leftarrow \theta + \alpha d, \qquad
        d = \arg\max_{\|d - h_0\| \le \kappa \|h_0\|} \min_i \langle h_i, d \rangle
          = h_0 + \kappa \|h_0\| \frac{h_\pi}{\|h_\pi\|}, \\
        \pi = \arg\min_{\pi \in \Delta} \langle h_\pi, h_0 \rangle + \kappa \|h_0\| \|h_\pi\|, \qquad
        h_\pi = \sum_i \pi_i h_i

    The second problem is the dual of the first: π has K weights ≥ 0 with sum 1, and :math:`h_\pi` is the mixture of
    trajectories that agrees least with d. If :math:`h_\pi = 0`, no step in the ball has a positive inner product with
    all trajectories, and :math:`d = h_0`.

    The paper defines :math:`h_0` in two ways. ``centre="erm"`` (Eq. 5) is the trajectory of one more copy, trained on
    the minibatches of all domains: with κ = 0 and α = 1 the method is ERM (Corollary 1). ``centre="mean"`` (Algorithm
    1) is the mean of the :math:`h_i`, which equals ERM's step only for E = 1 minibatch per round (``inner_steps``) and
    plain SGD.

    Differences from the text of the paper: the update adds α d, because :math:`h_i = \theta_i - \theta` (the printed
    minus sign would increase the loss), and the radius of the ball is κ‖h_0‖ both in the problem and in the step, as in
    Algorithm 1 and the appendix (Theorem 1 has √κ in the problem and κ in the step). Published variants:
    ``OfficialPOGM``, ``MeasurementPOGM``, ``PaperTextPOGM``.
    """

    kappa: float = hyper(
        0.1, Choice(0.05, 0.1, 0.2, 0.5), least=0, most=1000, draw_as="pogm_kappa"
    )  # κ: radius of the ball, relative to ‖h_0‖
    _: KW_ONLY
    meta_lr: float = hyper(1.0, Choice(0.1, 0.5, 1.0), above=0)  # α: step size of the update
    centre: str = hyper("erm", options=("erm", "mean"))  # h_0: trajectory of ERM, or mean of the trajectories
    rescale: str = hyper("none", options=("none", "norm"))  # "norm": scale d to the length of h_0

    compiles_direction: ClassVar[bool] = True
    former_fields: ClassVar[dict[str, Any]] = {"scope": "all", "granularity": "global"}  # in saved trials
    replaced: ClassVar[dict[str, str]] = FORMER_OPTIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.kappa, float) and self.kappa >= 1:
            name = f"{type(self).__name__}.kappa={self.kappa:g}"
            text = f"{name}: for values of at least 1, a step may point away from the centre and raise the mean loss."
            warnings.warn(text, KappaWarning, stacklevel=3)

    @property
    def trains_pooled(self) -> bool:
        """True for the ERM centre, which needs a copy that is trained on all domains."""
        return self.centre == "erm"

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Solve Theorem 1: d = h_0 + κ‖h_0‖ h_π/‖h_π‖, with π the weights of the mixture that agrees least with d."""
        solution = self.solve(gram, centre)
        return Direction(solution.weights, solution_metrics(solution, gram, centre), rescale=self.rescale == "norm")

    def solve(self, gram: Tensor, centre: Centre | None) -> Solution:
        """Solve the problem exactly. The published variants override this."""
        return solve(gram, self.kappa, centre=centre)
