"""Ways to apply a function to every domain (loop, CUDA streams, ``vmap``), and gradients that work in all of them.

Each way implements ``core.problem.EachDomain``.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.func import grad, vmap

from pogm.core import trees
from pogm.core.compilation import ignore_compiler_warnings
from pogm.core.problem import Objective
from pogm.core.state import Loss
from pogm.core.trees import Params, Tree

Allocate = Callable[[Tree, int], Tree]  # (result, count) -> buffer for that many results
Result = TypeVar("Result")


def map_by_loop(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """Apply the function to one domain after the other. Only the activations of one domain are in memory."""

    def apply(k: int) -> Tree:
        domain = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
        return function(domain, *(trees.index(other, k) for other in others))

    return stack_results(apply, trees.leading_size(batches))


def allocate_like(result: Tree, count: int) -> Tree:
    """Allocate a [count, …] buffer on the device and dtype of ``result``."""
    return trees.map_numbers(lambda leaf: leaf.new_empty((count, *leaf.shape)), result)


def stack_results(apply: Callable[[int], Tree], count: int, allocate: Allocate = allocate_like) -> Tree:
    """Stack ``apply(0)``, …, ``apply(count - 1)`` along a leading axis.

    Each result is written to the buffer at once, so no result is in memory twice.
    """
    if peek_interpreter_stack() is not None:  # under vmap, results cannot be written into a buffer
        return trees.stack([apply(k) for k in range(count)])

    def write(k: int, rows: Tree | None) -> Tree:  # a function, so that a result is freed before the next is computed
        result = apply(k)
        rows = allocate(result, count) if rows is None else rows
        for row, leaf in zip(trees.storages(rows), trees.storages(result), strict=True):
            row[k].copy_(leaf, non_blocking=True)
        return rows

    rows = None
    for k in range(count):
        rows = write(k, rows)
    return rows


def map_by_vmap(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """Apply the function to all domains at once by ``vmap``."""

    def apply(domain: Tree, *others: Tree) -> Tree:
        return function(trees.map_leaves(lambda leaf: leaf[None], domain), *others)

    return vmap(apply)(batches, *others)


def map_by_streams(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """Apply the function to all domains on parallel CUDA streams. The activations of all domains are in memory."""

    def make_task(k: int) -> Callable[[], Tree]:
        domain = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
        return lambda: function(domain, *(trees.index(other, k) for other in others))

    return trees.stack(run_on_streams([make_task(k) for k in range(trees.leading_size(batches))]))


def run_on_streams(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run each task on its own CUDA stream and return the results.

    A network for small images uses a small part of a GPU, so several tasks in parallel are faster. The streams start
    after the work that was queued on the current stream, which in turn waits for all of them. The memory of a stream is
    therefore not reused before all readers are done.
    """
    current = torch.cuda.current_stream()
    streams = [_stream(torch.cuda.current_device(), number) for number in range(len(tasks))]
    results = []
    for stream, task in zip(streams, tasks, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(task())
    for stream in streams:
        current.wait_stream(stream)
    return results


@cache
def _stream(device: int, number: int) -> torch.cuda.Stream:
    """Return a stream that is reused for all calls: libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def gradient(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    """Return a function that computes the gradient of an objective, and the loss.

    Outside of transforms, it uses ``torch.autograd``, which does not keep a graph of the gradient and takes half the
    memory. Inside ``vmap``, only ``torch.func`` works.
    """
    return _by_autograd(objective) if peek_interpreter_stack() is None else _by_func(objective)


def _by_autograd(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    def gradient(params: Params) -> tuple[Params, Loss]:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            loss = objective(leaves)
            with ignore_compiler_warnings():  # the first backward pass of a compiled function is compiled here
                gradients = torch.autograd.grad(loss.value, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True)), trees.map_leaves(torch.detach, loss)

    return gradient


def _by_func(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
    def value_and_loss(params: Params) -> tuple[Tensor, tuple[Loss]]:
        loss = objective(params)
        return loss.value, (loss,)

    def gradient(params: Params) -> tuple[Params, Loss]:
        gradients, (loss,) = grad(value_and_loss, has_aux=True)(params)
        return gradients, loss

    return gradient
