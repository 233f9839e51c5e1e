"""IGA: inter-environmental gradient alignment."""

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
class IGA(Algorithm):
    r"""Inter-environmental gradient alignment (Koyama and Yamaguchi, 2020): penalise the variance of the gradients.

    .. math:: \tfrac1K \sum_k L_k + \lambda \sum_k \lVert g_k - \bar g \rVert^2, \qquad
        \nabla \sum_k \lVert g_k - \bar g \rVert^2 = 2 \sum_k H_k (g_k - \bar g)

    The code computes the right-hand side: first the gradients :math:`g_k = \nabla L_k` and their mean
    :math:`\bar g`, then one product with the Hessian :math:`H_k` of each domain, so that the graph of only one domain
    must be in memory. As in DomainBed, the penalty is the sum over domains; in the paper (arXiv:2008.01883) it is the
    trace of the covariance, the mean. DomainBed treats :math:`\bar g` as a constant, which gives the same gradient,
    because the deviations sum to zero. With one domain, or with λ = 0, this is ERM. Differences from DomainBed:
    batch-norm statistics are the mean over the passes of the domains; the metric ``loss`` is the whole objective and
    ``nll`` its first term.

    Args:
        penalty: Weight λ of the squared deviations of the gradients.
    """

    penalty: float = hyper(1000.0, Power(10, 1, 5), least=0)  # λ

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the mean gradient plus λ times the gradient of the squared deviations."""
        key = self.random_key(state)
        gradients, loss = domain_gradients(state, batch, problem, key)  # g_k: [K, ...]
        mean = trees.mean(gradients)
        deviations = trees.map_leaves(lambda g, m: g - m, gradients, mean)  # g_k − ḡ
        products = hessian_products(state, batch, problem, deviations, key)
        gradient = trees.move(mean, trees.map_leaves(lambda p: p.sum(0), products), 2 * self.penalty)
        penalty = trees.dot(deviations, deviations).to(loss.value.dtype)
        return gradient, loss._replace(
            value=loss.value + self.penalty * penalty, metrics={"nll": loss.value, "penalty": penalty}
        )
