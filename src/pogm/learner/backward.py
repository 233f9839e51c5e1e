"""Gradients for any optimizer: combine the gradients of the domains' losses, and write the result to ``.grad``."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.flat_params import FlatParams, Layout
from pogm.core.state import Metrics


def backward(
    losses: Tensor | Sequence[Tensor],
    parameters: Iterable[Tensor],
    method: Algorithm,
    *,
    group: dist.ProcessGroup | None = None,
) -> Metrics:
    r"""Add the combined gradient of the losses of K domains to ``.grad``, in the style of TorchJD.

    With the gradients :math:`g_k = \nabla L_k`, ``.grad`` gets the direction that the method chooses for the
    trajectories :math:`h_k = -g_k`, with the opposite sign. For `POGM`, the centre is the mean gradient:

    .. math:: \bar g + \kappa \|\bar g\| \frac{g_\pi}{\|g_\pi\|}

    Any optimizer of torch can use it. The step size of the method (``meta_lr``) is not used: the learning rate takes
    its place. Methods that combine gradients: POGM and its variants, Reptile (the mean), AlignedMTL, CAGrad, ConFIG,
    IMTLG, MGDA, NashMTL, PCGrad, UPGrad, ANDMask, SANDMask and `TorchJD`. If a gradient is not finite, ``.grad``
    becomes NaN, so that a ``GradScaler`` skips the step. All methods but SANDMask give the scaled gradient for scaled
    losses.

    Args:
        losses: Loss of each domain: a tensor [K], or K scalars.
        parameters: Parameters whose ``.grad`` is filled.
        method: Method that combines the gradients, such as ``POGM()``.
        group: Process group over which the gradients of each domain are averaged first. With
            ``DistributedDataParallel``, compute the losses inside ``no_sync()`` and pass
            ``torch.distributed.group.WORLD``.

    Returns:
        Metrics of the method, as tensors, for example the weights of the domains.

    Raises:
        UsageError: The method does not combine gradients, or the losses are not differentiable scalars.

    Example:
        >>> import torch, pogm
        >>> module = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.AdamW(module.parameters())
        >>> sites = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(3)]
        >>> losses = [torch.nn.functional.cross_entropy(module(x), y) for x, y in sites]
        >>> optimizer.zero_grad()
        >>> metrics = pogm.backward(losses, module.parameters(), pogm.POGM())
        >>> optimizer.step()
    """
    combine: Any = getattr(method, "combine_gradients", None)
    if combine is None or isinstance(method, type):
        able = [name for name, algorithm in all_algorithms().items() if _combines(algorithm)]
        found = f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__
        raise UsageError(
            f"Expected a method that combines gradients ({', '.join(able)}), such as POGM(); found {found}. Use a "
            "Learner for other methods."
        )
    if isinstance(losses, Tensor) and losses.ndim != 1:
        raise UsageError(
            f"Expected the losses of the domains: a tensor [K], or a list of K scalars; found a tensor of shape "
            f"{list(losses.shape)}. Pass one loss for each domain, not their sum or mean."
        )
    scalars = list(losses)
    leaves = [leaf for leaf in parameters if leaf.requires_grad]
    _check(scalars, leaves)
    gradients, used = _domain_gradients(scalars, leaves, keep_unused=group is not None)
    with torch.no_grad():
        key = torch.randint(2**62, ()).to(gradients.flat.device)  # from torch's generator
        if group is not None:
            dist.all_reduce(gradients.flat, group=group)
            gradients.flat.div_(dist.get_world_size(group))
            dist.broadcast(key, dist.get_global_rank(group, 0), group=group)
        combined, metrics = combine(gradients, key)
        broken = ~trees.is_finite(gradients.flat)
        for name, leaf in zip(gradients, used, strict=True):
            update = torch.where(broken, torch.nan, combined[name]).to(leaf.dtype)
            leaf.grad = update if leaf.grad is None else leaf.grad + update
    return {"loss": torch.stack([loss.detach() for loss in scalars]).mean(), **metrics}


def _combines(algorithm: type[Algorithm]) -> bool:
    """Return True if a method combines gradients; FAMO, which needs losses too, sets the attribute to None."""
    return getattr(algorithm, "combine_gradients", None) is not None


def _check(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    if not losses or not all(isinstance(loss, Tensor) and loss.ndim == 0 for loss in losses):
        shapes = [list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__ for loss in losses]
        raise UsageError(f"Expected the loss of each domain as a scalar tensor; found {shapes}. Take the mean.")
    if not parameters:
        raise UsageError("Expected parameters that require gradients; found none. Pass module.parameters().")
    constant = [k for k, loss in enumerate(losses) if not loss.requires_grad]
    if constant:
        raise UsageError(
            f"Expected losses that depend on the parameters; found constant losses of domains {constant}. Compute them "
            "with gradients enabled, and do not detach them."
        )


def _domain_gradients(
    losses: Sequence[Tensor], parameters: Sequence[Tensor], keep_unused: bool
) -> tuple[FlatParams, list[Tensor]]:
    """Return the gradients [K, ...] of the losses, and the parameters on which at least one loss depends."""
    last = len(losses) - 1
    rows = []
    for k, loss in enumerate(losses):
        try:
            rows.append(torch.autograd.grad(loss, parameters, retain_graph=k < last, allow_unused=True))
        except RuntimeError as error:
            if "donated" not in str(error):
                raise
            raise UsageError(
                "Expected a graph that can be differentiated once for each domain; found a module of torch.compile "
                "that frees its buffers after the first time. Before its first call set "
                "torch._functorch.config.donated_buffer = False."
            ) from error
    indices = [i for i in range(len(parameters)) if keep_unused or any(row[i] is not None for row in rows)]
    used = [parameters[i] for i in indices]
    vectors = [torch.cat([_dense(row[i], parameters[i]).flatten() for i in indices]) for row in rows]
    layout = Layout(tuple(map(str, indices)), tuple(leaf.shape for leaf in used))
    return FlatParams(torch.stack(vectors), layout), used


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
