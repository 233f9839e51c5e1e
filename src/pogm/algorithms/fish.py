"""Fish: inter-domain gradient matching to first order."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyper import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State


@dataclass(frozen=True)
class Fish(Algorithm):
    r"""Fish (Shi et al., 2022, Algorithm 1): a walk through the domains, then a step towards where it ended.

    .. math:: \tilde\theta \leftarrow \tilde\theta - \eta \nabla L_k(\tilde\theta) \text{ for each } k,
        \qquad \theta \leftarrow \theta + \epsilon (\tilde\theta - \theta)

    To first order the walk follows the sum of the gradients and of their pairwise inner products. The inner
    optimizer keeps its state from round to round. DomainBed visits the domains in a fixed order; the paper, and
    we unless ``permute`` is false, in a random one.
    """

    meta_lr: float = hyper(0.5, Choice(0.05, 0.1, 0.5), above=0)  # epsilon
    permute: bool = hyper(True)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One walk and one step towards its end."""
        (batch,) = batches
        count = batch.y.shape[0]  # K
        order = random.permutation(self.random_key(state), count) if self.permute else None

        walker, losses = state, []
        for position in range(count):
            visited = torch.arange(count, device=batch.y.device)[position] if order is None else order[position]
            walker, metrics = super().step(walker, [_only(batch, visited)], problem)
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
