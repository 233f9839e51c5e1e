"""CAGrad: the problem of POGM, stated for gradients."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.state import State
from pogm.pareto.weightings import cagrad_weights


@dataclass(frozen=True)
class CAGrad(WeightedRounds):
    r"""Conflict-averse gradient descent (Liu et al., 2021): near the mean, what the worst-off domain gains most from.

    .. math:: \theta \leftarrow \theta + \frac{\alpha}{1 + c^2} d, \qquad
        d = \arg\max_{\|d - h_0\| \le c \|h_0\|} \min_i \langle h_i, d \rangle

    CAGrad states this problem for gradients, POGM for trajectories: on the same trajectories they differ in the
    factor :math:`1 / (1 + c^2)` alone, which the authors' code has by default, and this is
    ``POGM(kappa=c, centre="mean")`` with α divided by 1 + c². With one inner step of SGD the trajectories are
    gradients, and this is CAGrad with SGD as its outer optimizer. The problem is solved exactly. The default of c and
    its range are our choice: the paper's differ from task to task.
    """

    radius: float = hyper(0.4, Choice(0.1, 0.2, 0.4, 0.8), least=0, draw_as="cagrad_c")  # c

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Those of Theorem 1, divided by 1 + c²."""
        return cagrad_weights(gram, self.radius)
