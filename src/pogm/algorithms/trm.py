"""TRM: transfer risk minimisation, features on which the classifier of each domain works on the others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, over_samples
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params

HEAD_STEPS, RATE = 30, 0.1  # steps of SGD of the classifiers of the domains, and their learning rate
TERMS, LARGEST = 10, 10.0  # of the Neumann series; it ends when an entry of the sum is larger


@dataclass(frozen=True)
class TRM(Algorithm):
    r"""Transfer risk minimisation (Xu and Jaakkola, 2021): the classifier of each domain should work on the others.

    Every domain q has a linear classifier :math:`w_q`, which takes 30 steps of SGD on :math:`L_q` per step. With the
    risks :math:`L_i(w_q)` of this classifier on domain i:

    .. math:: \tfrac1K \sum_k L_k + \tfrac1K \sum_q \Big( P_q - \lambda \,
        \big\langle H_q^{-1} \nabla_w P_q, \nabla_w L_q(w_q) \big\rangle \Big), \qquad
        P_q = \sum_{i \ne q} \alpha_{qi} L_i(w_q), \qquad
        \alpha_{qi} \leftarrow \alpha_{qi} e^{\eta \alpha_{qi} L_i(w_q)}

    The gradient flows through the features, but not through :math:`w_q`, α and the first factor of the inner product,
    where the inverse Hessian is a Neumann series :math:`\sum_{m=0}^{10} (I - H_q)^m`, which ends early if an entry of
    the sum is larger than 10. Derivatives are with respect to the weights without the bias, and each row of α is
    normalised before it is used. The first ``penalty_anneal_iters`` steps are ERM. With one domain this is ERM. As in
    DomainBed, the exponent contains α. Differences from DomainBed: its first term of the series is missing and the
    second is counted twice, because a tensor is changed in place; it copies the classifier to :math:`w_q` if
    ``class_balanced`` is set. The paper is arXiv:2110.09940.

    Args:
        penalty: Weight λ of the inner product.
        penalty_anneal_iters: Number of steps of ERM.
        eta: Step size η of the weights α.
    """

    penalty: float = hyper(1e-4, Power(10, -5, 0), least=0, draw_as="cos_lambda")  # λ
    penalty_anneal_iters: int = hyper(200, Power(10, 0, 4, integer=True), least=0, draw_as="iters")
    eta: float = hyper(1e-2, Power(10, -3, -1), least=0, draw_as="groupdro_eta")

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with random classifiers of the domains and equal weights α."""
        if not isinstance(problem.network.get_submodule("head"), nn.Linear):
            raise UsageError(
                "Expected a network with a linear head, because TRM trains one for each domain; found none. Leave "
                "nonlinear_classifier off, or name the last layer, for example Learner(module, TRM(), head='fc')."
            )
        classes, width = params["head.weight"].shape
        bound, count, like = 1 / math.sqrt(width), problem.num_domains, params["head.weight"]
        keys = [random.fold(key, number) for number in (0, 1)]
        weight = bound * (2 * random.uniform(keys[0], (count, classes, width)) - 1)
        bias = bound * (2 * random.uniform(keys[1], (count, classes)) - 1)
        alpha = 1 - torch.eye(count, dtype=like.dtype, device=like.device)
        memory = {"weight": weight.to(like.dtype), "bias": bias.to(like.dtype), "alpha": alpha}
        return super().start(params, buffers, key, problem)._replace(memory=memory)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the transfer risks."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        if len(z) == 1:
            return Loss(risk, {"nll": risk, "transfer_risk": torch.zeros_like(risk)})
        active = state.step >= self.penalty_anneal_iters
        constant = z.detach()
        weight, bias = train_heads(model, constant, batch.y, state.memory["weight"], state.memory["bias"])
        alpha = state.memory["alpha"] / state.memory["alpha"].sum(1, keepdim=True)

        risks = head_risks(model, z, batch.y, weight, bias)  # L_i(w_q): [q, i]
        transfer = (alpha * risks).sum(1)  # P_q
        with torch.no_grad():
            slopes = (alpha.unsqueeze(-1).unsqueeze(-1) * head_gradients(model, constant, batch.y, weight, bias)).sum(1)
            vector = inverse_hessian_product(model, constant, batch.y, weight, bias, slopes)  # [K, C, n]
        own = own_gradients(model, z, batch.y, weight, bias)  # ∇L_q(w_q)
        inner = (vector * own).sum((1, 2))
        total = (transfer - self.penalty * inner).mean()
        updated = alpha * torch.exp(self.eta * (alpha * risks).detach())
        memory = {
            name: torch.where(active, new, state.memory[name])
            for name, new in (("weight", weight), ("bias", bias), ("alpha", updated))
        }
        value = risk + torch.where(active, total, 0.0)
        return Loss(value, {"nll": risk, "transfer_risk": transfer.mean()}, memory)


def own_gradients(model: Model, z: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of L_q(w_q) with respect to the weights of each classifier, [K, C, n]."""
    errors = model.loss.output_gradient(z @ weight.mT + bias.unsqueeze(1), y)
    return errors.mT @ z / z.shape[1]


def train_heads(model: Model, z: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classifiers of the domains after 30 steps of SGD on constant features."""
    with torch.no_grad():
        for _ in range(HEAD_STEPS):
            errors = model.loss.output_gradient(z @ weight.mT + bias.unsqueeze(1), y)  # [K, B, C]
            weight = weight - RATE * errors.mT @ z / z.shape[1]
            bias = bias - RATE * errors.mean(1)
    return weight, bias


def head_risks(model: Model, z: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the risk of the classifier of every domain on every domain, [q, i]."""
    rows = [model.loss(z @ w.T + b, y).mean(1) for w, b in zip(weight.unbind(), bias.unbind(), strict=True)]
    return torch.stack(rows)


def head_gradients(model: Model, z: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the gradients of these risks with respect to the weights of the classifiers, [q, i, C, n]."""
    rows = []
    for w, b in zip(weight.unbind(), bias.unbind(), strict=True):
        errors = model.loss.output_gradient(z @ w.T + b, y)
        rows.append(errors.mT @ z / z.shape[1])
    return torch.stack(rows)


def inverse_hessian_product(model: Model, z: Tensor, y: Tensor, weight: Tensor, bias: Tensor, vector: Tensor) -> Tensor:
    """Return Σ_m (I − H_q)^m v_q for every domain, [K, C, n], with the Hessian of L_q(w_q)."""
    term = total = vector
    running = torch.ones_like(vector[:, :1, :1], dtype=torch.bool)
    logits = z @ weight.mT + bias.unsqueeze(1)

    def change(direction: Tensor) -> Tensor:
        """Return the derivative of ∇ℓ in a direction of the logits; the Hessian of ℓ is symmetric."""
        found: Tensor = grad(lambda f: (model.loss.output_gradient(f, y) * direction).sum())(logits)
        return found

    for _ in range(TERMS):
        term = torch.where(running, term - change(z @ term.mT).mT @ z / z.shape[1], term)
        total = torch.where(running, total + term, total)
        running = running & (total.abs().amax((1, 2), keepdim=True) <= LARGEST)
    return total
