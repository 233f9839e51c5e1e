"""EQRM: empirical quantile risk minimisation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from pogm.algorithms.annealing import change_lr
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, Power, Uniform, hyper
from pogm.core.model import Model
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

EQUAL = 1e-9  # risks with a smaller relative deviation differ only by rounding
ROUNDS, PARTS = 4, 256  # search for the quantile: 256⁴ = 2³², the precision of 32 bisections, in 4 vectorised rounds


@dataclass(frozen=True)
class EQRM(Algorithm):
    r"""Empirical quantile risk minimisation (Eastwood et al., 2022): minimise a quantile of the risks of the domains.

    .. math:: Q \text{ with } F(Q) = \alpha, \qquad F(q) = \tfrac1K \sum_k \Phi\Big(\frac{q - L_k}{b}\Big), \quad
        b = 1.06\, \hat\sigma(L_1, \dots, L_K)\, K^{-1/5}

    The first ``burn_in_anneal_iters`` steps minimise the mean risk; then Adam is reset, with the learning rate
    ``later_lr``. With one domain, or with equal risks, the quantile is the mean.

    Differences from DomainBed: (1) our gradient is that of Q, by implicit differentiation; the gradient of DomainBed is
    that of the ends of its bisection, which depend on the best and the worst domain only (``through="ends"``). (2) Its
    random search draws burn-ins that are not integers, so its test for the end of the burn-in never succeeds and Adam
    is never reset (``restart=False``); ours are integers. ``EQRM.preset("domainbed")`` sets both. (3) Its ``later_lr``
    of 1e-6 is for pretrained networks; on small images we keep the learning rate. (4) All domains share one forward
    pass, which matters for batch norm that is not frozen.

    Args:
        quantile: Level α of the quantile.
        burn_in_anneal_iters: Number of steps that minimise the mean risk.
        later_lr: Learning rate after these steps; 0 keeps the learning rate.
        through: Quantity that is differentiated: "quantile" (the quantile) or "ends" (the ends of the bisection).
        restart: Whether to reset Adam and to change the learning rate after the burn-in.
    """

    quantile: float = hyper(0.75, Uniform(0.5, 0.99), above=0, most=0.999999, draw_as="eqrm_quantile")  # α
    burn_in_anneal_iters: int = hyper(2500, Power(10, 2.5, 3.5, integer=True), least=0, draw_as="eqrm_burnin_iters")
    later_lr: float = hyper(0.0, large=Large(1e-6, Power(10, -7, -5)), least=0, draw_as="eqrm_lr")
    through: str = hyper("quantile", options=("quantile", "ends"))
    restart: bool = hyper(True)

    presets: ClassVar[dict[str, dict[str, Any]]] = {"domainbed": {"through": "ends", "restart": False}}

    def restart_at(self) -> int | None:
        """Reset Adam after the burn-in."""
        return self.burn_in_anneal_iters if self.restart else None

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Take one step with the learning rate of the current phase."""
        if self.restart:
            problem = change_lr(problem, state.step >= self.burn_in_anneal_iters, self.later_lr)
        return super().step(state, batches, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk during the burn-in, and the quantile after it."""
        risks = model.risks(batch)  # [K]
        risk, quantile = risks.mean(), smoothed_quantile(risks, self.quantile, self.through)
        value = torch.where(state.step >= self.burn_in_anneal_iters, quantile, risk)
        return Loss(value, {"nll": risk, "quantile": quantile})


def smoothed_quantile(risks: Tensor, alpha: Scalar, through: str = "quantile") -> Tensor:
    """Return Q with F(Q) = α for risks [K]; the mean if there is one risk or if all are equal."""
    if risks.shape[0] == 1:
        return risks.mean()
    wide = risks.double()
    mean, variance = wide.mean(), wide.var()
    equal = variance <= (EQUAL * mean).square()
    bandwidth = 1.06 * torch.where(equal, 1.0, variance).sqrt() * risks.shape[0] ** -0.2
    ends = torch.stack([wide.amin(), wide.amax()]) + bandwidth * ndtri(torch.zeros_like(mean) + alpha)
    position = _search_quantile(wide.detach(), bandwidth.detach(), ends.detach(), alpha)
    quantile = torch.lerp(ends[0], ends[1], position)

    if through == "quantile":  # a Newton step at the solution keeps the value and has the gradient of Q
        constant = quantile.detach()
        density = torch.exp(-0.5 * ((constant - wide.detach()) / bandwidth.detach()).square()).mean()
        derivative = density / (math.sqrt(2 * math.pi) * bandwidth.detach())  # F'(Q)
        quantile = constant - (_smoothed_cdf(constant, wide, bandwidth) - alpha) / derivative
    return torch.where(equal, mean, quantile).to(risks.dtype)


def _search_quantile(risks: Tensor, bandwidth: Tensor, ends: Tensor, alpha: Scalar) -> Tensor:
    """Return the position of the quantile between the ends, in [0, 1]; each round divides the interval by PARTS."""
    position, width = torch.zeros_like(bandwidth), 1.0
    for _ in range(ROUNDS):
        width /= PARTS
        inner = position + width * torch.arange(1, PARTS, device=risks.device, dtype=risks.dtype)
        lower = _smoothed_cdf(torch.lerp(ends[0], ends[1], inner).unsqueeze(-1), risks, bandwidth) < alpha
        position = position + width * lower.sum()
    return position + width / 2


def _smoothed_cdf(q: Tensor, risks: Tensor, bandwidth: Tensor) -> Tensor:
    """Return F(q), the distribution function of the risks, smoothed by a Gaussian kernel."""
    terms: Tensor = ndtr((q - risks) / bandwidth)
    return terms.mean(-1)
