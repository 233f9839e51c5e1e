"""SAND-mask: AND-mask with soft edges."""

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
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class SANDMask(Algorithm):
    r"""SAND-mask (Shahtalebi et al., 2021): the more the domains' gradients agree, in sign and size, the more counts.

    .. math:: \frac{m \odot \bar g}{\operatorname{mean}(m)}, \qquad
        m = \max\Big(0, \tanh\Big(\frac{k}{v} \big(\big|\tfrac1K \sum_i \operatorname{sign} g_i\big| - \tau\big)
        \Big)\Big), \qquad v = \operatorname{Var}_i(g_i),

    for each tensor of weights by itself. At the published default, τ = 1, the mask is zero everywhere and nothing
    moves but by weight decay: ours is the middle of the published range, theirs ``SANDMask.preset("published")``.
    With one domain there is no variance, and this is ERM. Live batch-norm statistics become the mean of what the
    domains' passes left, where in DomainBed each pass goes on from the one before.
    """

    tau: float = hyper(0.5, Uniform(0, 1), least=0, most=1)
    steepness: float = hyper(10.0, Power(10, -3, 5), above=0, draw_as="k")  # k

    presets: ClassVar[dict[str, dict[str, Any]]] = {"published": {"tau": 1.0}}

    def gradient(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Loss]:
        """The masked mean."""
        if batch.y.shape[0] == 1:
            return super().gradient(state, batch, problem)
        gradients, loss = domain_gradients(state, batch, problem, self.random_key(state))
        masked: Params = trees.map_leaves(self._masked, gradients)
        return masked, loss

    def _masked(self, g: Tensor) -> Tensor:
        agreed = g.sign().mean(0).abs()
        mask = torch.tanh(self.steepness / g.var(0) * (agreed - self.tau)).clamp(min=0)
        mask = torch.where(mask.isnan(), 1e-17, mask).to(g.dtype)  # v = 0 and |mean sign| = τ
        return mask * g.mean(0) / (1e-10 + mask.mean())
