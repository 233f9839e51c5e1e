"""CAGrad: the problem of POGM, published for gradients."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import WeightedRounds
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.state import State
from pogm.pareto.weightings import cagrad_weights


@dataclass(frozen=True)
class CAGrad(WeightedRounds):
    r"""Conflict-averse gradient descent (Liu et al., 2021): the best direction for the worst domain, near the mean.

    .. math:: \theta \leftarrow \theta + \frac{\alpha}{1 + c^2} d, \qquad
        d = \arg\max_{\|d - h_0\| \le c \|h_0\|} \min_i \langle h_i, d \rangle

    CAGrad states this problem for gradients, POGM for trajectories. On the same trajectories they differ only in the
    factor :math:`1 / (1 + c^2)`, the default of the authors' code: this class equals
    ``POGM(kappa=c, centre="mean")`` with α divided by 1 + c². With one inner step of SGD the trajectories are
    gradients, and this is CAGrad with SGD as its optimizer. The problem is solved exactly. The default of c and its
    range are our choice, because the paper uses different values for different tasks.
    """

    radius: float = hyper(
        0.4, Choice(0.1, 0.2, 0.4, 0.8), least=0, most=1000, draw_as="cagrad_c"
    )  # c: radius of the ball / ‖h_0‖

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of Theorem 1, divided by 1 + c²."""
        return cagrad_weights(gram, self.radius)
