"""Going over domains, and differentiating: in a loop with autograd, or by ``vmap`` with ``torch.func``."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.func import grad, vmap

from pogm.core import trees
from pogm.core.problem import Objective
from pogm.core.state import Loss
from pogm.core.trees import Params, Tree


def in_a_loop(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """One domain after the other: one domain's activations in memory at a time."""
    count = trees.leading(batches)
    results = []
    for k in range(count):
        one = trees.map_leaves(lambda leaf, k=k: leaf[k : k + 1], batches)
        results.append(function(one, *(trees.index(other, k) for other in others)))
    return trees.stack(results)


def by_vmap(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """All domains at once."""

    def of_one(one: Tree, *others: Tree) -> Tree:
        return function(trees.map_leaves(lambda leaf: leaf[None], one), *others)

    return vmap(of_one)(batches, *others)


def gradient(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    """The gradient of an objective, with the loss it was taken of.

    Outside of transforms ``torch.autograd`` takes it, which keeps no graph of the gradient and half the memory;
    inside ``vmap`` there is only ``torch.func``.
    """
    return _by_autograd(objective) if peek_interpreter_stack() is None else _by_func(objective)


def _by_autograd(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    def gradient(params: Params) -> tuple[Params, Loss]:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            loss = objective(leaves)
            slopes = torch.autograd.grad(loss.value, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True)), trees.map_leaves(torch.detach, loss)

    return gradient


def _by_func(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    def with_loss(params: Params) -> tuple[Tensor, tuple[Loss]]:
        loss = objective(params)
        return loss.value, (loss,)

    def gradient(params: Params) -> tuple[Params, Loss]:
        slopes, (loss,) = grad(with_loss, has_aux=True)(params)
        return slopes, loss

    return gradient
