"""MLDG: meta-learning for domain generalization."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Power, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params

ORDER = 1  # purpose of the random key that orders the domains; purpose 0 is for random layers


@dataclass(frozen=True)
class MLDG(Algorithm):
    r"""Meta-learning for domain generalization (Li et al., 2018), first order: meta-train and meta-test domains.

    .. math:: \frac1K \sum_{(i, j)} \big(\nabla L_i(\theta) + \beta \nabla L_j(\theta_i)\big), \qquad
        \theta_i = \operatorname{Adam}(\theta, \nabla L_i(\theta))

    The domains are shuffled. The last ``n_meta_test`` are meta-test domains j; each of the others, i, is paired with
    one of them in turn. The inner step uses a new optimizer. As in DomainBed, the sum over pairs is divided by K, not
    by the number of pairs. With one domain this is ERM. Differences from DomainBed: at most K − 1 domains are meta-test
    domains (there, two of two domains leave none to train); the pass at θ updates batch-norm statistics, the pass at
    :math:`\theta_i` does not (there, both act on a copy of the network). The tables of DomainBed of 2020 pair every
    domain with the next one: ``MLDG.preset("cyclic")``.

    Args:
        beta: Weight β of the meta-test gradient.
        n_meta_test: Number of meta-test domains.
        pairs: Pairs of domains: "split" (meta-train with meta-test domains) or "cyclic" (each with the next).
    """

    beta: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mldg_beta")
    n_meta_test: int = hyper(2, Choice(1, 2), least=1, most=1000)
    pairs: str = hyper("split", options=("split", "cyclic"))

    presets: ClassVar[dict[str, dict[str, Any]]] = {"cyclic": {"pairs": "cyclic"}}

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the sum over pairs, divided by K."""
        count = batch.y.shape[0]  # K
        if count == 1:
            return super().gradient(state, batch, problem)

        def pair_gradient(pair: tuple[Batch, Batch], live: Params, keys: Tensor) -> tuple[Params, Loss]:
            train, test = pair
            before = state._replace(buffers=state.buffers | live, key=keys[0])
            train_gradient, loss = super(MLDG, self).gradient(before, train, problem)  # ∇L_i(θ)
            inner_state = problem.optimizer.init(state.params)
            inner, _ = problem.optimizer.update(state.params, train_gradient, inner_state)  # θ_i
            after = before._replace(params=inner, key=keys[1])
            test_gradient, test_loss = super(MLDG, self).gradient(after, test, problem)  # ∇L_j(θ_i)
            value = loss.value + self.beta * test_loss.value
            return trees.move(train_gradient, test_gradient, self.beta), loss._replace(value=value)

        train, test = self._draw_pairs(random.permutation(self.random_key(state, ORDER), count))
        pairs = len(train)
        live = trees.repeat(problem.live_buffers(state), pairs)
        keys = random.split(self.random_key(state), 2 * pairs).reshape(pairs, 2)
        inputs = _select_domains(batch, train), _select_domains(batch, test)
        gradients, losses = problem.each_domain(pair_gradient, inputs, live, keys)
        shares = torch.full_like(losses.value, 1 / count)
        loss = Loss(losses.value.sum() / count, buffers=trees.mean(losses.buffers))
        gradient: Params = trees.combine(shares, gradients)
        return gradient, loss

    def _draw_pairs(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the domains i and the domains j of all pairs, for a random order of the domains."""
        count = len(order)
        if self.pairs == "cyclic":
            return order, order.roll(-1)
        test = min(self.n_meta_test, count - 1)
        train = count - test
        return order[:train], order[train + torch.arange(train, device=order.device) % test]


def _select_domains(batch: Batch, domains: Tensor) -> Batch:
    selected: Batch = trees.map_leaves(lambda leaf: leaf.index_select(0, domains), batch)
    return selected
