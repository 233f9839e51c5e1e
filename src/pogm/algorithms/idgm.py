"""IDGM: second-order inter-domain gradient matching."""

from dataclasses import dataclass

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients, hessian_products
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class IDGM(Algorithm):
    r"""Inter-domain gradient matching (Shi et al., 2022, Algorithm 2): reward inner products of gradients.

    .. math:: \tfrac1K \sum_k L_k - \gamma_t \frac{2}{K (K - 1)} \sum_{i<j} \langle g_i, g_j \rangle, \qquad
        \nabla \sum_{i<j} \langle g_i, g_j \rangle = \sum_k H_k \sum_{j \ne k} g_j

    The code computes the right-hand side: first the gradients :math:`g_k = \nabla L_k`, then one product with the
    Hessian :math:`H_k` of each domain, so that the graph of only one domain must be in memory. This follows the paper:
    the code of the authors has only Algorithm 1 (`Fish`), and no values of γ for these datasets are published. The
    default, the search range and the warm-up (γ grows linearly over ``warmup_anneal_iters`` steps, a tenth of the 5000
    steps of DomainBed) are our choice. With one domain there is no pair, and this is ERM.

    Args:
        gamma: Weight γ of the mean inner product.
        warmup_anneal_iters: Number of steps over which γ grows from 0.
    """

    gamma: float = hyper(0.01, Power(10, -4, 0), least=0, draw_as="idgm_gamma")
    warmup_anneal_iters: int = hyper(500, least=0)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the mean gradient minus γ times the gradient of the mean inner product."""
        key, count = self.random_key(state), problem.num_domains
        gradients, loss = domain_gradients(state, batch, problem, key)  # g_k: [K, ...]
        total = trees.map_leaves(lambda g: g.sum(0), gradients)
        other_sums = trees.map_leaves(lambda s, g: s - g, total, gradients)  # Σ_{j≠k} g_j
        products = hessian_products(state, batch, problem, other_sums, key)
        pairs = max(count * (count - 1) / 2, 1)
        inner_product = (trees.dot(total, total) - trees.dot(gradients, gradients)) / 2 / pairs  # mean over i < j
        warmup = self.warmup_anneal_iters == 0 or (state.step.double() / self.warmup_anneal_iters).clamp(max=1)
        gamma = self.gamma * warmup  # γ_t
        mean = trees.mean(gradients)
        gradient = trees.move(mean, trees.map_leaves(lambda p: p.sum(0), products), -gamma / pairs)
        metrics = {"nll": loss.value, "inner_product": inner_product}
        return gradient, loss._replace(value=loss.value - gamma * inner_product, metrics=metrics)
