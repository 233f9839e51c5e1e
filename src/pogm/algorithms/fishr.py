"""Fishr: match the variances of per-sample gradients across domains."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, Uniform, hyper
from pogm.core.model import Model, over_samples
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class Fishr(Algorithm):
    r"""Fishr (Ramé et al., 2022): match the variance of the per-sample gradients of the head across domains.

    .. math:: \tfrac1K \sum_k L_k + \lambda_t \tfrac1K \sum_k \operatorname{mean}_j (\hat v_k - \bar v)_j^2, \qquad
        v_k = \operatorname{Var}_b \nabla_\omega \ell_{k,b}, \quad
        m_k \leftarrow \beta m_k + (1 - \beta) v_k, \quad \hat v_k = m_k / (1 - \beta), \quad
        \bar v = \tfrac1K \sum_k \hat v_k

    The variance is that of the minibatch (denominator B). The gradient flows through :math:`v_k`, but not through the
    previous :math:`m_k`. The averages start at zero and are updated from the first step on. The weight
    :math:`\lambda_t` is 0 for the first ``penalty_anneal_iters`` steps and λ after them; Adam is reset when it changes.
    With one domain this is ERM. Differences from DomainBed: the averages are part of the state, so a resumed run
    continues with them; the variances of a linear head are computed in closed form.

    Args:
        penalty: Weight λ of the distance between the variances.
        penalty_anneal_iters: Number of steps without the penalty.
        ema: Decay β of the moving averages.
    """

    penalty: float = hyper(1000.0, Power(10, 1, 4), least=0, draw_as="lambda")  # λ
    penalty_anneal_iters: int = hyper(1500, Uniform(0, 5000, integer=True), least=0)
    ema: float = hyper(0.95, Uniform(0.90, 0.99), least=0, most=0.999999)  # β

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with moving averages of zero, [K, weights of the head]."""
        size = sum(leaf.numel() for name, leaf in params.items() if name.startswith("head."))
        if size == 0:
            raise UsageError(
                "Expected a network with a head, because Fishr compares its gradients; found none. "
                "Name the last layer, for example Learner(module, Fishr(), head='fc')."
            )
        averages = next(iter(params.values())).new_zeros(problem.num_domains, size)
        return super().start(params, buffers, key, problem)._replace(memory={"variances": averages})

    def restart_at(self) -> int | None:
        """Reset Adam when the penalty starts."""
        return self.penalty_anneal_iters or None

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk plus the weighted distance between the gradient variances of the domains."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        logits = over_samples(model.head, z)  # [K, B, C]
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()

        variances = gradient_variances(model, z, logits, batch.y)  # v_k: [K, weights of the head]
        averages = self.ema * state.memory["variances"] + (1 - self.ema) * variances  # m_k
        corrected = averages / (1 - self.ema)  # v̂_k
        distance = (corrected - corrected.mean(0)).square().mean()
        weighted = torch.where(state.step >= self.penalty_anneal_iters, self.penalty * distance, 0.0)  # λ_t · distance
        memory = {"variances": averages.detach()}
        return Loss(risk + weighted, {"nll": risk, "penalty": distance}, memory)


def gradient_variances(model: Model, z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return v_k: the variance over samples of each entry of the gradient of the head, [K, weights of the head]."""
    is_linear = isinstance(model.network.get_submodule("head"), nn.Linear)
    if is_linear and logits.ndim == 3 and {"head.weight", "head.bias"} <= model.params.keys():
        return linear_head_variances(z, model.loss.output_gradient(logits, y))
    return any_head_variances(model, z, y)


def linear_head_variances(z: Tensor, a: Tensor) -> Tensor:
    """Return v_k of a linear head; the gradient of sample b is the outer product of a_b = ∇ℓ (softmax − y) and z_b."""
    count = z.shape[1]  # B
    weight = a.square().mT @ z.square() / count - (a.mT @ z / count).square()  # [K, C, n]
    bias = a.square().mean(1) - a.mean(1).square()  # [K, C]
    return torch.cat([weight.flatten(1), bias], dim=1)


def any_head_variances(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """Return v_k of any head, from the gradient of each sample."""
    head = {name.removeprefix("head."): leaf for name, leaf in model.params.items() if name.startswith("head.")}
    frozen = {name.removeprefix("head."): leaf for name, leaf in model.buffers.items() if name.startswith("head.")}
    module = model.network.get_submodule("head")

    def sample_loss(weights: Params, z: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(module, (weights, frozen), (z[None],))
        return model.loss(logits[None], y[None, None])[0, 0]

    gradients = vmap(vmap(grad(sample_loss), (None, 0, 0)), (None, 0, 0))(head, z, y)
    flat = torch.cat([leaf.flatten(2) for leaf in gradients.values()], dim=2)  # [K, B, weights]
    return flat.var(1, correction=0)
