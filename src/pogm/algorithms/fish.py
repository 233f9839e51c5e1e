"""Fish: first-order inter-domain gradient matching."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.algorithms.walk import interpolate, select_domain
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State


@dataclass(frozen=True)
class Fish(Algorithm):
    r"""Fish (Shi et al., 2022, Algorithm 1): one inner step per domain, then a step towards the result.

    .. math:: \tilde\theta \leftarrow \operatorname{Adam}(\tilde\theta, \nabla L_k(\tilde\theta)) \text{ for each } k,
        \qquad \theta \leftarrow \theta + \epsilon (\tilde\theta - \theta)

    With SGD, the inner steps decrease the sum of the risks and increase the inner products of their gradients, up to
    second order in the learning rate. As in DomainBed, the inner optimizer keeps its state between steps, and
    batch-norm statistics move by :math:`\epsilon` too. Differences from DomainBed: it visits the domains in a fixed
    order; the paper and we (unless ``permute`` is false) use a random order. The metric ``loss`` is the mean over the
    inner steps, not the last value. The code of the authors visits a sample of the domains, divides :math:`\epsilon` by
    their number and can train with ERM first.

    Args:
        meta_lr: Outer step size ε.
        permute: Whether to visit the domains in a random order.
    """

    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # ε
    permute: bool = hyper(True)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Take one inner step on each domain, then one outer step."""
        (batch,) = batches
        order = torch.arange(len(batch.y), device=batch.y.device)
        if self.permute:
            order = random.permutation(self.random_key(state), len(batch.y))

        # A new key: the inner steps count on from state.step, so two outer steps would share dropout masks.
        inner, losses = state._replace(key=self.random_key(state, 1)), []  # θ̃
        for domain in order.unbind():
            inner, metrics = super().step(inner, [select_domain(batch, domain)], problem)
            losses.append(metrics["loss"])

        updated = state._replace(
            params=interpolate(state.params, inner.params, self.meta_lr),
            buffers=interpolate(state.buffers, inner.buffers, self.meta_lr),
            optimizer=inner.optimizer,
            step=state.step + 1,
        )
        return updated, {"loss": torch.stack(losses).mean()}
