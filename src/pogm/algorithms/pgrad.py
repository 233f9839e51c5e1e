"""PGrad: principal directions of a walk over the domains."""

from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.algorithms.walk import interpolate, select_domain
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.pareto import gramian
from pogm.pareto.weightings import principal_weights


@dataclass(frozen=True)
class PGrad(Algorithm):
    r"""Principal gradients (Wang et al., 2023): step along the principal directions of a walk over the domains.

    .. math:: \theta \leftarrow \theta + \alpha \|\tilde\theta_n - \theta\|
        \sum_{z=1}^k \frac{\lambda_z}{\|(\lambda_1, \dots, \lambda_k)\|} s_z v_z, \qquad
        s_z = \operatorname{sign} \langle v_z, \tilde\theta_n - \theta \rangle

    The walk :math:`\tilde\theta_0 = \theta, \dots, \tilde\theta_n` takes one step of Adam on each domain after the
    other, in random order, once for each of ``splits`` parts of the minibatches (PGrad-B of the paper). The
    :math:`\lambda_z, v_z` are the k largest variances of its points and their principal directions. The length of the
    step is α times the distance between the start and the end of the walk. The defaults are those of the authors' code:
    k = 4, 3 parts, α = 0.1. Differences from that code: directions whose variance is zero are left out (in the code
    they give NaN); weight decay is part of Adam, as in `Fish` (in the code, part of the outer step); batch-norm
    statistics also move by α (in the code they never change). The range of α is our choice.

    Args:
        meta_lr: Outer step size α.
        directions: Number k of principal directions.
        splits: Number of parts of a minibatch, each with one step of the walk; at most its size.
    """

    meta_lr: float = hyper(0.1, Choice(0.05, 0.1, 0.5), above=0, draw_as="pgrad_lr")  # α
    directions: int = hyper(4, least=1)  # k
    splits: int = hyper(3, least=1)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Walk over the domains, then take one step along the principal directions of the walk."""
        (batch,) = batches
        domains, size = batch.y.shape[:2]
        parts = min(self.splits, size)
        walker, losses, points = state._replace(key=self.random_key(state)), [], []
        for part in range(parts):
            piece = _slice_samples(batch, part * size // parts, (part + 1) * size // parts)
            for domain in random.permutation(self.random_key(state, 1 + part), domains).unbind():
                walker, metrics = super().step(walker, [select_domain(piece, domain)], problem)
                losses.append(metrics["loss"])
                points.append(trees.subtract(walker.params, state.params))
        walk = trees.stack(points)  # u_1, …, u_n: [n, ...]
        gram = gramian(walk)
        weights = principal_weights(gram, self.directions)
        updated = state._replace(
            params=trees.move(state.params, trees.combine(weights, walk), self.meta_lr),
            buffers=interpolate(state.buffers, walker.buffers, self.meta_lr),
            optimizer=walker.optimizer,
            step=state.step + 1,
        )
        return updated, {"loss": torch.stack(losses).mean(), "norm": gram[-1, -1].sqrt()}


def _slice_samples(batch: Batch, start: int, stop: int) -> Batch:
    piece: Batch = trees.map_leaves(lambda leaf: leaf[:, start:stop], batch)
    return piece
