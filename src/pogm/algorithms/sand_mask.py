"""SAND-mask: AND-mask with a continuous mask."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, Uniform, hyper
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class SANDMask(Algorithm):
    r"""SAND-mask (Shahtalebi et al., 2021): weight gradient entries by their agreement across domains.

    .. math:: \frac{m \odot \bar g}{\operatorname{mean}(m)}, \qquad
        m = \max\Big(0, \tanh\Big(\frac{k}{v} \big(\big|\tfrac1K \sum_i \operatorname{sign} g_i\big| - \tau\big)
        \Big)\Big), \qquad v = \operatorname{Var}_i(g_i),

    separately for each parameter tensor. With one domain there is no variance, and this is ERM. Differences from
    DomainBed: with its default τ = 1 the mask is zero everywhere and only weight decay changes the weights, so our
    default is the middle of its search range (``SANDMask.preset("published")`` has τ = 1); batch-norm statistics are
    the mean over the passes of the domains, whereas DomainBed updates them one domain after another.

    Args:
        tau: Threshold τ of the agreement of signs.
        steepness: Slope k of the mask above the threshold.
    """

    tau: float = hyper(0.5, Uniform(0, 1), least=0, most=1)
    steepness: float = hyper(10.0, Power(10, -3, 5), above=0, draw_as="k")  # k

    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"tau": 1.0}}

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """Return the masked mean gradient."""
        if batch.y.shape[0] == 1:
            return super().gradient(state, batch, problem)
        gradients, loss = domain_gradients(state, batch, problem, self.random_key(state))
        return self.combine_gradients(gradients, state.key)[0], loss

    def combine_gradients(self, gradients: Params, key: Tensor) -> tuple[Params, Metrics]:
        """Return the masked mean of the gradients [K, ...] of the domains, and no metrics."""
        if trees.leading_size(gradients) == 1:
            mean: Params = trees.mean(gradients)
            return mean, {}
        return {name: self._mask(leaf) for name, leaf in gradients.items()}, {}

    def _mask(self, g: Tensor) -> Tensor:
        agreement = g.sign().mean(0).abs()
        mask = torch.tanh(self.steepness / _variance(g) * (agreement - self.tau)).clamp(min=0)  # m
        mask = torch.where(mask.isnan(), 1e-17, mask).to(g.dtype)  # NaN: v = 0 and agreement = τ
        return mask * g.mean(0) / (1e-10 + mask.mean())


def _variance(g: Tensor) -> Tensor:
    """Return the variance over the first axis; exactly 0 if all entries are equal.

    On a CPU, ``Tensor.var`` over the first of few entries takes ten times as long.
    """
    shifted = g - g[:1]
    return (shifted - shifted.mean(0)).square().sum(0) / (g.shape[0] - 1)
