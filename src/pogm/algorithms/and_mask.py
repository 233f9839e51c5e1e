"""AND-mask: only where the domains' gradients have one sign."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Uniform, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params

SLACK = 1e-6  # three thirds need not add up to one


@dataclass(frozen=True)
class ANDMask(Algorithm):
    r"""AND-mask (Parascandolo et al., 2021): of the mean gradient, the entries on whose sign the domains agree.

    .. math:: \frac{m \odot \bar g}{\operatorname{mean}(m)}, \qquad
        m = 1\Big[\,\big|\tfrac1K \sum_k \operatorname{sign} g_k\big| \ge \tau\,\Big], \qquad
        \bar g = \tfrac1K \sum_k g_k,

    for each tensor of weights by itself; zero where no entry agrees. At τ = 0 this is ERM. Weight decay, which the
    optimizer adds, moves masked entries too. Where we leave DomainBed: the comparison has a slack of 1e-6, without
    which τ = 1 depends on rounding; and live batch-norm statistics become the mean of what the domains' passes left,
    where there each pass goes on from the one before.
    """

    tau: float = hyper(1.0, Uniform(0.5, 1), least=0, most=1)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """The masked mean."""
        gradients, loss = domain_gradients(state, batch, problem, self.random_key(state))
        masked: Params = trees.map_leaves(self._masked, gradients)
        return masked, loss

    def _masked(self, g: Tensor) -> Tensor:
        agreed = g.sign().mean(0).abs()
        mask = (agreed >= self.tau - SLACK).to(g.dtype)
        return mask * g.mean(0) / (1e-10 + mask.mean())
