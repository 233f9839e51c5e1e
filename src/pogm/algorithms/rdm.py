"""RDM: risk distribution matching."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.annealing import change_lr
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, Uniform, hyper
from pogm.core.model import Model
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

GAMMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True)
class RDM(Algorithm):
    r"""Risk distribution matching (Nguyen et al., 2024): match losses of the worst domain to those of all.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \operatorname{MMD}^2(\ell_w, \ell)
        + \nu_t (\operatorname{Var} \ell + \operatorname{Var} \ell_w), \qquad w = \arg\max_k L_k, \quad
        k(u, v) = \sum_\gamma e^{-\gamma (u - v)^2}

    over the B losses :math:`\ell_w` of the worst domain and the K·B losses of all. Both weights are 0 for the first
    ``penalty_anneal_iters`` steps; then Adam is reset, with the learning rate ``later_lr``. Differences from DomainBed:
    ``later_lr`` is for pretrained networks, so on small images we keep the learning rate; we compute squared
    differences of losses directly (DomainBed expands them, which loses precision). The published batches have 88
    samples per domain, and 40 on DomainNet and TerraIncognita: set ``batch_size``. Defaults for single datasets are
    presets; their narrower search ranges are not included.

    Args:
        penalty: Weight λ of the discrepancy.
        penalty_anneal_iters: Number of steps without penalties.
        variance_weight: Weight ν of the variances of the losses.
        later_lr: Learning rate after these steps; 0 keeps the learning rate.
    """

    penalty: float = hyper(5.0, Uniform(0.1, 10), least=0, draw_as="rdm_lambda")  # λ
    penalty_anneal_iters: int = hyper(
        1500, Uniform(800, 2700, integer=True), least=0, draw_as="rdm_penalty_anneal_iters"
    )
    variance_weight: float = hyper(0.004, Uniform(0.001, 0.007), least=0)  # ν
    later_lr: float = hyper(0.0, large=Large(1.5e-5, Uniform(8e-6, 2e-5)), least=0, draw_as="rdm_lr")

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "domain_net": {"penalty": 0.5, "penalty_anneal_iters": 2400, "variance_weight": 0.0},
        "office_home": {"variance_weight": 0.0},
        "terra_incognita": {"variance_weight": 0.0},
    }

    def restart_at(self) -> int:
        """Reset Adam when the penalties start."""
        return self.penalty_anneal_iters

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Take one step with the learning rate of the current phase."""
        problem = change_lr(problem, state.step >= self.penalty_anneal_iters, self.later_lr)
        return super().step(state, batches, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted discrepancy and variances."""
        if batch.y.shape[1] < 2:
            raise UsageError(
                "Expected minibatches of at least 2 samples for RDM, which computes variances of losses; found 1. "
                "Raise batch_size."
            )
        losses = model.losses(batch)  # [K, B]
        risks = model.add_penalties(losses.mean(1), batch)
        worst = (torch.arange(len(risks), device=risks.device) == risks.argmax()).to(losses.dtype)  # [K]: 1 at w
        matching = kernel_distance(losses, worst)
        variance = losses.var() + worst @ losses.var(1)
        weighted = self.penalty * matching + self.variance_weight * variance
        value = risks.mean() + torch.where(state.step >= self.penalty_anneal_iters, weighted, 0.0)
        return Loss(value, {"nll": risks.mean(), "matching": matching, "variance": variance})


def kernel_distance(losses: Tensor, worst: Tensor) -> Tensor:
    """Return MMD² between the losses of one domain and of all; losses [K, B], worst [K] is 1 at this domain."""
    squares = (losses[:, :, None, None] - losses).square()  # [K, B, K, B]
    blocks = [torch.exp(-gamma * squares).mean((1, 3)) for gamma in GAMMAS]  # [K, K]: means over pairs of samples
    kernel = torch.stack(blocks).sum(0)
    contrast = worst - 1 / len(worst)
    return contrast @ kernel @ contrast
