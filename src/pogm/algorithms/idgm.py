"""IDGM: inter-domain gradient matching to second order."""

from dataclasses import dataclass

from torch import Tensor
from torch.func import grad

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients, pass_of_each
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class IDGM(Algorithm):
    r"""Inter-domain gradient matching (Shi et al., 2022, Algorithm 2): low risks whose gradients point the same way.

    .. math:: \tfrac1K \sum_k L_k - \gamma_t \frac{2}{K (K - 1)} \sum_{i<j} \langle g_i, g_j \rangle, \qquad
        \nabla \sum_{i<j} \langle g_i, g_j \rangle = \sum_k H_k \sum_{j \ne k} g_j

    The right-hand side is how it is computed: the gradients :math:`g_k = \nabla L_k` first, then one product with each
    domain's Hessian :math:`H_k`, so that no more than one domain's graph need be in memory. This is from the paper: the
    authors' code has Algorithm 1 alone, and published values of γ for these datasets are not known. Default, range and
    warm-up (γ grows linearly over ``warmup_anneal_iters`` steps, a tenth of DomainBed's 5000) are our choice. With one
    domain there is no pair, and this is ERM.
    """

    gamma: float = hyper(0.01, Power(10, -4, 0), least=0, draw_as="idgm_gamma")
    warmup_anneal_iters: int = hyper(500, least=0)

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """The mean gradient, less that of the inner products."""
        key, count = self.random_key(state), problem.num_domains
        gradients, loss = domain_gradients(state, batch, problem, key)  # g_k: [K, ...]
        total = trees.map_leaves(lambda g: g.sum(0), gradients)
        others = trees.map_leaves(lambda s, g: s - g, total, gradients)  # Σ_{j≠k} g_j

        def curvature(one: Batch, others: Params, live: Params, key: Tensor) -> Params:
            """H_k times the sum of the others' gradients."""
            own = state._replace(buffers=state.buffers | live, key=key)

            def risk(params: Params) -> Tensor:
                return problem.model(params, own).risks(one).mean()

            slope, _ = problem.gradient(lambda params: Loss(trees.dot(grad(risk)(params), others)))(state.params)
            return slope

        bent = problem.each_domain(curvature, batch, others, *pass_of_each(state, problem, key))
        pairs = max(count * (count - 1) / 2, 1)
        product = (trees.dot(total, total) - trees.dot(gradients, gradients)) / 2 / pairs  # the mean over i < j
        warm = self.warmup_anneal_iters == 0 or (state.step.double() / self.warmup_anneal_iters).clamp(max=1)
        gamma = self.gamma * warm  # gamma_t
        mean = trees.mean(gradients)
        slope = trees.move(mean, trees.map_leaves(lambda b: b.sum(0), bent), -gamma / pairs)
        metrics = {"nll": loss.value, "inner_product": product}
        return slope, loss._replace(value=loss.value - gamma * product, metrics=metrics)
