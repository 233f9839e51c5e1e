"""Comparison of an exported model with the original."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.deployment.export_inputs import module_to_export, probe_inputs
from pogm.deployment.model import TrainedModel

Predict = Callable[[Tensor], Tensor]


class Comparison(NamedTuple):
    """Largest difference between the outputs of the exported model and of the original."""

    difference: float  # relative to the largest output of a batch, or to 1 if that is smaller
    inputs: str  # inputs with this difference
    batches: int  # number of batches that were compared


def compare(model: TrainedModel, predict: Predict) -> Comparison:
    """Return the largest difference between the outputs of a model and of another function.

    The inputs are those of `probe_inputs`. Outputs that are not finite must be so in both.
    """
    module = module_to_export(model)
    worst, batches = Comparison(-1.0, "", 0), 0
    for name, inputs in probe_inputs(model):
        with torch.no_grad():
            expected, found = module(inputs).double(), predict(inputs).double()
        batches += 1
        difference = _relative_difference(expected, found)
        if difference > worst.difference:
            worst = Comparison(difference, f"{name}, batch size {len(inputs)}", 0)
    return worst._replace(batches=batches)


def _relative_difference(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return math.inf
    is_finite = expected.isfinite()
    if not torch.equal(is_finite, found.isfinite()):
        return math.inf
    gaps = torch.where(is_finite, expected - found, 0.0).abs()
    size = torch.where(is_finite, expected, 0.0).abs().max().clamp(min=1)
    return float(gaps.max() / size)
