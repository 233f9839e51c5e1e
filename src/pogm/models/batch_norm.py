"""Batch norm that keeps its running statistics."""

from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_batch_norm(network: nn.Module) -> None:
    """Keep every batch-norm layer in evaluation mode, whatever mode the network is put into.

    Its scale and shift are trained like all weights; its running statistics never change.
    """
    for layer in network.modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, _Frozen):
            kind: Any = type(layer)
            layer.__class__ = _frozen(kind)  # the layer itself changes, so that it stays frozen wherever it is put
            layer.eval()


class _Frozen:
    """Mixed into a batch-norm class: for such a layer, training and evaluation are the same."""

    def train(self: Any, mode: bool = True) -> Any:
        """Stay in evaluation mode."""
        return super().train(False)  # type: ignore[misc]


@cache
def _frozen(kind: Any) -> Any:
    return type(f"Frozen{kind.__name__}", (_Frozen, kind), {})
