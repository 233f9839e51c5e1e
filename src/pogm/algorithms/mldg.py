"""MLDG: steps that help one domain and, after them, another."""

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

ORDER = 1  # the purpose of its random numbers; 0 is that of the passes


@dataclass(frozen=True)
class MLDG(Algorithm):
    r"""Meta-learning for domain generalization (Li et al., 2018), to first order: train domains, tested on others.

    .. math:: \frac1K \sum_{(i, j)} \big(\nabla L_i(\theta) + \beta \nabla L_j(\theta_i)\big), \qquad
        \theta_i = \operatorname{Adam}(\theta, \nabla L_i(\theta))

    The domains are shuffled; the last ``n_meta_test`` are for testing, and each of the others is paired with one of
    these in turn. The inner step is that of a fresh optimizer. As in DomainBed the sum over pairs is divided by K,
    not by their number. There two test domains of two leave nothing to train; here at most K − 1 are for testing,
    and one domain alone takes an ERM step. DomainBed's tables of 2020 pair every domain with the next one:
    ``MLDG.preset("cyclic")``. The pass at :math:`\theta_i` leaves no trace in batch-norm statistics; in DomainBed,
    which copies the network first, neither does the one at θ.
    """

    beta: float = hyper(1.0, Power(10, -1, 1), least=0, draw_as="mldg_beta")
    n_meta_test: int = hyper(2, Choice(1, 2), least=1)
    pairs: str = hyper("split", options=("split", "cyclic"))

    presets: ClassVar[dict[str, dict[str, Any]]] = {"cyclic": {"pairs": "cyclic"}}

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """The mean over pairs."""
        count = batch.y.shape[0]  # K
        if count == 1:
            return super().gradient(state, batch, problem)

        def of_pair(pair: tuple[Batch, Batch], live: Params, keys: Tensor) -> tuple[Params, Loss]:
            train, test = pair
            before = state._replace(buffers=state.buffers | live, key=keys[0])
            here, loss = super(MLDG, self).gradient(before, train, problem)  # ∇L_i(θ)
            moved, _ = problem.optimizer.update(state.params, here, problem.optimizer.init(state.params))  # θ_i
            there, after = super(MLDG, self).gradient(before._replace(params=moved, key=keys[1]), test, problem)
            value = loss.value + self.beta * after.value
            return trees.move(here, there, self.beta), loss._replace(value=value)

        train, test = self._paired(random.permutation(self.random_key(state, ORDER), count))
        number = len(train)  # of pairs
        live = trees.repeat(problem.live_buffers(state), number)
        keys = random.split(self.random_key(state), 2 * number).reshape(number, 2)
        gradients, losses = problem.each_domain(of_pair, (_only(batch, train), _only(batch, test)), live, keys)
        shares = torch.full_like(losses.value, 1 / count)
        loss = Loss(losses.value.sum() / count, buffers=trees.mean(losses.buffers))
        gradient: Params = trees.combine(shares, gradients)
        return gradient, loss

    def _paired(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """The domain i and the domain j of every pair, from a random order of all."""
        count = len(order)
        if self.pairs == "cyclic":
            return order, order.roll(-1)
        tested = min(self.n_meta_test, count - 1)
        trained = count - tested
        return order[:trained], order[trained + torch.arange(trained, device=order.device) % tested]


def _only(batch: Batch, domains: Tensor) -> Batch:
    return Batch(*(part.index_select(0, domains) for part in batch))
