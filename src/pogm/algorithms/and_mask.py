"""AND-mask: keep gradient entries whose sign agrees across domains."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Uniform, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params

SLACK = 1e-6  # tolerance of the comparison with τ, because three thirds may not sum to 1 in floating point


@dataclass(frozen=True)
class ANDMask(Algorithm):
    r"""AND-mask (Parascandolo et al., 2021): keep entries of the mean gradient whose sign agrees across domains.

    .. math:: \frac{m \odot \bar g}{\operatorname{mean}(m)}, \qquad
        m = 1\Big[\,\big|\tfrac1K \sum_k \operatorname{sign} g_k\big| \ge \tau\,\Big], \qquad
        \bar g = \tfrac1K \sum_k g_k,

    separately for each parameter tensor; the update is zero if no entry passes. With τ = 0 this is ERM. The optimizer
    applies weight decay to masked entries too. Differences from DomainBed: the comparison has a tolerance of 1e-6,
    because τ = 1 would otherwise depend on rounding; batch-norm statistics are the mean over the passes of the domains,
    whereas DomainBed updates them one domain after another.

    Args:
        tau: Threshold τ of the agreement of signs; 1 means that all domains must agree.
    """

    tau: float = hyper(1.0, Uniform(0.5, 1), least=0, most=1)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the masked mean gradient."""
        gradients, loss = domain_gradients(state, batch, problem, self.random_key(state))
        return self.combine_gradients(gradients, state.key)[0], loss

    def combine_gradients(self, gradients: Params, key: Tensor) -> tuple[Params, Metrics]:
        """Return the masked mean of the gradients [K, ...] of the domains, and no metrics."""
        return {name: self._mask(leaf) for name, leaf in gradients.items()}, {}

    def _mask(self, g: Tensor) -> Tensor:
        agreement = g.sign().mean(0).abs()
        mask = (agreement >= self.tau - SLACK).to(g.dtype)  # m
        return mask * g.mean(0) / (1e-10 + mask.mean())
