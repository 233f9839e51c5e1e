"""Fish: inter-domain gradient matching to first order."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State


@dataclass(frozen=True)
class Fish(Algorithm):
    r"""Fish (Shi et al., 2022, Algorithm 1): a walk through the domains, then a step towards where it ended.

    .. math:: \tilde\theta \leftarrow \operatorname{Adam}(\tilde\theta, \nabla L_k(\tilde\theta)) \text{ for each } k,
        \qquad \theta \leftarrow \theta + \epsilon (\tilde\theta - \theta)

    With SGD the walk lowers, to second order in its rate, the sum of the risks and raises the inner products of their
    gradients. As in DomainBed the optimizer of the walk keeps its state from round to round, and batch-norm statistics
    move by :math:`\epsilon` too. Where we leave it: DomainBed visits the domains in a fixed order; the paper, and we
    unless ``permute`` is false, in a random one; and the loss reported is the mean of the walk, not its last. The
    authors' own code visits a sample of the domains, divides :math:`\epsilon` by their number, and may train by ERM
    first.
    """

    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # epsilon
    permute: bool = hyper(True)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One walk and one step towards its end."""
        (batch,) = batches
        order = torch.arange(len(batch.y), device=batch.y.device)
        if self.permute:
            order = random.permutation(self.random_key(state), len(batch.y))

        walker, losses = state._replace(key=self.random_key(state, 1)), []  # or passes of two rounds share their masks
        for domain in order.unbind():
            walker, metrics = super().step(walker, [_only(batch, domain)], problem)
            losses.append(metrics["loss"])

        moved = state._replace(
            params=_towards(state.params, walker.params, self.meta_lr),
            buffers=_towards(state.buffers, walker.buffers, self.meta_lr),
            optimizer=walker.optimizer,
            step=state.step + 1,
        )
        return moved, {"loss": torch.stack(losses).mean()}


def _only(batch: Batch, domain: torch.Tensor) -> Batch:
    return Batch(*(part.index_select(0, domain.reshape(1)) for part in batch))


def _towards(start: trees.Params, end: trees.Params, rate: float) -> trees.Params:
    """start + rate · (end − start); integers, such as counters, jump to the end."""
    return {
        name: trees.move(leaf, end[name] - leaf, rate) if leaf.is_floating_point() else end[name]
        for name, leaf in start.items()
    }
