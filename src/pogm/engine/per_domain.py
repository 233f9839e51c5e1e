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

Room = Callable[[Tree, int], Tree]  # for so many results like one


def in_a_loop(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """One domain after the other: one domain's activations in memory at a time."""

    def of_one(k: int) -> Tree:
        one = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
        return function(one, *(trees.index(other, k) for other in others))

    return row_by_row(of_one, trees.leading(batches))


def rows_like(result: Tree, count: int) -> Tree:
    """Room for results where the first one is."""
    return trees.map_numbers(lambda leaf: leaf.new_empty((count, *leaf.shape)), result)


def row_by_row(of_one: Callable[[int], Tree], count: int, room: Room = rows_like) -> Tree:
    """Results along a leading axis, each written to its place as it comes, so that none is in memory twice."""
    if peek_interpreter_stack() is not None:  # what is mapped cannot be written into what is not
        return trees.stack([of_one(k) for k in range(count)])

    def written(k: int, rows: Tree | None) -> Tree:  # nothing of one result is left when the next is made
        result = of_one(k)
        rows = room(result, count) if rows is None else rows
        for row, leaf in zip(trees.storages(rows), trees.storages(result), strict=True):
            row[k].copy_(leaf, non_blocking=True)
        return rows

    rows = None
    for k in range(count):
        rows = written(k, rows)
    return rows


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
