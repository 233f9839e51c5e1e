"""Risk distribution matching."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.annealing import with_lr
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, Uniform, hyper
from pogm.core.model import Model
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

GAMMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class RDM(Algorithm):
    r"""Risk distribution matching (Nguyen et al., 2024): samples of the worst domain have losses like all samples.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \operatorname{MMD}^2(\ell_w, \ell)
        + \nu_t (\operatorname{Var} \ell + \operatorname{Var} \ell_w), \qquad w = \arg\max_k L_k, \quad
        k(u, v) = \sum_\gamma e^{-\gamma (u - v)^2}

    over the B losses :math:`\ell_w` of the worst domain and the K·B of all. Both weights are 0 for
    ``penalty_anneal_iters`` steps; then Adam starts afresh with ``later_lr``, which is for pretrained networks: on
    small images we keep the learning rate. Squared differences of losses are formed as such (DomainBed expands them,
    which costs digits). The published batches have 88 samples of each domain, and 40 on DomainNet and TerraIncognita:
    set ``batch_size``. Other defaults of single datasets are presets; their narrower search ranges are not here.
    """

    penalty: float = hyper(5.0, Uniform(0.1, 10), least=0, draw_as="rdm_lambda")  # lambda
    penalty_anneal_iters: int = hyper(
        1500, Uniform(800, 2700, integer=True), least=0, draw_as="rdm_penalty_anneal_iters"
    )
    variance_weight: float = hyper(0.004, Uniform(0.001, 0.007), least=0)  # nu
    later_lr: float = hyper(0.0, large=Large(1.5e-5, Uniform(8e-6, 2e-5)), least=0, draw_as="rdm_lr")  # 0: as before

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "domain_net": {"penalty": 0.5, "penalty_anneal_iters": 2400, "variance_weight": 0.0},
        "office_home": {"variance_weight": 0.0},
        "terra_incognita": {"variance_weight": 0.0},
    }

    def restart_at(self) -> int:
        """Adam forgets when the penalties set in."""
        return self.penalty_anneal_iters

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One step, with the learning rate of the phase."""
        problem = with_lr(problem, state.step >= self.penalty_anneal_iters, self.later_lr)
        return super().step(state, batches, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk, the distance of the worst domain from all, and the variances."""
        if batch.x.shape[1] < 2:
            raise UsageError(
                "Expected minibatches of at least 2 samples for RDM, which takes variances of their losses; found 1. "
                "Raise batch_size."
            )
        losses = model.losses(batch)  # [K, B]
        risks = model.penalised(losses.mean(1), batch)
        worst = (torch.arange(len(risks), device=risks.device) == risks.argmax()).to(losses.dtype)  # [K]: 1 at w
        matching = kernel_distance(losses, worst)
        variance = losses.var() + worst @ losses.var(1)
        weighted = self.penalty * matching + self.variance_weight * variance
        value = risks.mean() + torch.where(state.step >= self.penalty_anneal_iters, weighted, 0.0)
        return Loss(value, {"nll": risks.mean(), "matching": matching, "variance": variance})


def kernel_distance(losses: Tensor, worst: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of one row of [K, B] and all rows; one matrix has all its terms."""
    squares = (losses[:, :, None, None] - losses).square()  # [K, B, K, B]
    blocks = [torch.exp(-gamma * squares).mean((1, 3)) for gamma in GAMMAS]  # [K, K]: the mean over pairs of samples
    kernel = torch.stack(blocks).sum(0)
    contrast = worst - 1 / len(worst)
    return contrast @ kernel @ contrast
