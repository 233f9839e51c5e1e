"""Nash-MTL: the bargaining solution between the domains."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.rounds import Direction, WeightedRounds, weighted_direction
from pogm.core.state import State
from pogm.pareto.problem import Centre
from pogm.pareto.weightings import nash_mtl_weights


@dataclass(frozen=True)
class NashMTL(WeightedRounds):
    r"""Multi-task learning as a bargaining game (Navon et al., 2022): maximise the product of the domains' gains.

    .. math:: \theta \leftarrow \theta + \alpha \frac{\sum_i a_i h_i}{\sum_i a_i}, \qquad
        G a = 1 / a, \quad a > 0, \quad G_{ij} = \langle h_i, h_j \rangle

    The direction maximises :math:`\sum_i \log \langle h_i, d \rangle` in a ball, so it does not depend on the lengths
    of the trajectories, and it has a positive inner product with all of them. Differences from the authors' code: the
    code solves the equation by a sequence of convex programs; this class uses Newton's method on the convex function
    :math:`\tfrac12 a^\top G a - \sum_i \log a_i`. The step of the code has length √K, clipped to 1, for all gradients;
    here the weights have the sum 1, because trajectories contain the learning rate. The code can reuse the weights for
    several steps; this class computes them in every round.

    The metric ``residual`` is the largest :math:`|a_i (G a)_i - 1|`. It is large only if a convex combination of the
    trajectories is zero. Then no solution exists, and the step is close to zero.
    """

    def weights(self, gram: Tensor, state: State) -> Tensor:
        """Return the weights of the bargaining solution."""
        return nash_mtl_weights(gram)[0]

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Return the weights, the worst alignment and the residual of the equation."""
        weights, residual = nash_mtl_weights(gram)
        found = weighted_direction(gram, weights)
        return found._replace(metrics=found.metrics | {"residual": residual.max()})
