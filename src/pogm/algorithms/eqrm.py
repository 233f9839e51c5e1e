"""Empirical quantile risk minimisation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from pogm.algorithms.annealing import with_lr
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, Power, Uniform, hyper
from pogm.core.model import Model
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

EQUAL = 1e-9  # risks whose spread is below this share of their mean differ by rounding alone
ROUNDS, PARTS = 4, 256  # of the search for the quantile: as fine as 32 halvings, in an eighth of the operations


@dataclass(frozen=True)
class EQRM(Algorithm):
    r"""Empirical quantile risk minimisation (Eastwood et al., 2022): a quantile of the risks, not their mean.

    .. math:: Q \text{ with } F(Q) = \alpha, \qquad F(q) = \tfrac1K \sum_k \Phi\Big(\frac{q - L_k}{b}\Big), \quad
        b = 1.06\, \hat\sigma(L_1, \dots, L_K)\, K^{-1/5}

    For ``burn_in_anneal_iters`` steps the mean risk is minimised; then Adam starts afresh with ``later_lr``. One
    domain, or risks that are equal, have their mean as quantile.

    Where we leave DomainBed: the gradient is that of Q, by implicit differentiation; DomainBed's is that of the ends
    of its bisection, which only the best and the worst domain feel (``through="ends"``). Its random searches draw
    burn-ins with a fraction, which no counter ever meets, so Adam goes on as it was (``restart=False``); ours are
    whole numbers. ``EQRM.preset("domainbed")`` is both. Its ``later_lr`` of 1e-6 is for pretrained networks; on small
    images we keep the learning rate. Domains share one pass, where DomainBed's have one each: with live batch norm
    they differ.
    """

    quantile: float = hyper(0.75, Uniform(0.5, 0.99), above=0, most=0.999999, draw_as="eqrm_quantile")  # alpha
    burn_in_anneal_iters: int = hyper(2500, Power(10, 2.5, 3.5, integer=True), least=0, draw_as="eqrm_burnin_iters")
    later_lr: float = hyper(0.0, large=Large(1e-6, Power(10, -7, -5)), least=0, draw_as="eqrm_lr")  # 0: as before
    through: str = hyper("quantile", options=("quantile", "ends"))  # what is differentiated
    restart: bool = hyper(True)  # after the burn-in, with later_lr

    presets: ClassVar[dict[str, dict[str, Any]]] = {"domainbed": {"through": "ends", "restart": False}}

    def restart_at(self) -> int | None:
        """Adam forgets when the quantile takes over."""
        return self.burn_in_anneal_iters if self.restart else None

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One step, with the learning rate of the phase."""
        if self.restart:
            problem = with_lr(problem, state.step >= self.burn_in_anneal_iters, self.later_lr)
        return super().step(state, batches, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk, and after the burn-in the quantile."""
        risks = model.risks(batch)  # [K]
        risk, quantile = risks.mean(), quantile_of(risks, self.quantile, self.through)
        value = torch.where(state.step >= self.burn_in_anneal_iters, quantile, risk)
        return Loss(value, {"nll": risk, "quantile": quantile})


def quantile_of(risks: Tensor, alpha: Scalar, through: str = "quantile") -> Tensor:
    """The alpha-quantile of risks [K], smoothed by a Gaussian kernel; their mean where they are one or equal."""
    if risks.shape[0] == 1:
        return risks.mean()
    wide = risks.double()  # K numbers: digits cost nothing
    mean, variance = wide.mean(), wide.var()
    equal = variance <= (EQUAL * mean).square()
    bandwidth = 1.06 * torch.where(equal, 1.0, variance).sqrt() * risks.shape[0] ** -0.2
    ends = torch.stack([wide.amin(), wide.amax()]) + bandwidth * ndtri(torch.zeros_like(mean) + alpha)
    share = _share(wide.detach(), bandwidth.detach(), ends.detach(), alpha)
    quantile = torch.lerp(ends[0], ends[1], share)

    if through == "quantile":  # a Newton step from the solution: it stays where it is and has the gradient of Q
        still = quantile.detach()
        density = torch.exp(-0.5 * ((still - wide.detach()) / bandwidth.detach()).square()).mean()
        slope = density / (math.sqrt(2 * math.pi) * bandwidth.detach())  # of F
        quantile = still - (_below(still, wide, bandwidth) - alpha) / slope
    return torch.where(equal, mean, quantile).to(risks.dtype)


def _share(risks: Tensor, bandwidth: Tensor, ends: Tensor, alpha: Scalar) -> Tensor:
    """How far between the ends the quantile lies: PARTS times finer each round."""
    share, width = torch.zeros_like(bandwidth), 1.0
    for _ in range(ROUNDS):
        width /= PARTS
        inner = share + width * torch.arange(1, PARTS, device=risks.device, dtype=risks.dtype)
        lower = _below(torch.lerp(ends[0], ends[1], inner).unsqueeze(-1), risks, bandwidth) < alpha
        share = share + width * lower.sum()
    return share + width / 2


def _below(q: Tensor, risks: Tensor, bandwidth: Tensor) -> Tensor:
    """F(q): how much of the smoothed distribution lies below q."""
    each: Tensor = ndtr((q - risks) / bandwidth)
    return each.mean(-1)
