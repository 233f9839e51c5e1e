"""Comparison of an exported model with the original."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.deployment.model import TrainedModel, image_transform

BATCH_SIZES = (1, 2, 5)  # an exported program is traced with another one
EXTREME = 100.0  # factor of the random inputs that are far outside of the range of images

Predict = Callable[[Tensor], Tensor]


class Comparison(NamedTuple):
    """Largest difference between the logits of the exported model and of the original."""

    difference: float  # relative to the largest logit of a batch, or to 1 if that is smaller
    inputs: str  # inputs with this difference
    batches: int  # number of batches that were compared


def compare(model: TrainedModel, predict: Predict) -> Comparison:
    """Return the largest difference between the logits of a model and of another function.

    The inputs are random numbers in the range of images and far outside, and black, white and patterned images, in
    several batch sizes. Logits that are not finite must be so in both.
    """
    worst, batches = Comparison(-1.0, "", 0), 0
    for name, inputs in probe_inputs(model):
        with torch.no_grad():
            expected, found = model(inputs).double(), predict(inputs).double()
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


def probe_inputs(model: TrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs of a comparison, with names. They are always the same."""
    generator = torch.Generator().manual_seed(0)
    transform, (height, width) = model.transform.transform, image_transform(model).stored_size
    for size in BATCH_SIZES:
        noise = torch.randn(size, *transform.shape, generator=generator)
        yield "random inputs", noise
        yield f"random inputs times {EXTREME:g}", noise * EXTREME
        pixels = torch.randint(256, (size, transform.shape[0], height, width), generator=generator, dtype=torch.uint8)
        board = (torch.arange(height)[:, None] + torch.arange(width)) % 2 * 255
        images = {
            "random pixels": pixels,
            "black images": torch.zeros_like(pixels),
            "white images": torch.full_like(pixels, 255),
            "checkerboards": board.to(torch.uint8).expand_as(pixels).contiguous(),
        }
        yield from ((name, transform.to_inputs(image, torch.float32)) for name, image in images.items())
        yield "zeros", torch.zeros_like(noise)
