"""Input stores: all inputs of a run on the device, or on the host and streamed to the device (``prefetch``)."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pogm.data.transforms.base import Part


class InputStore(Protocol):
    """Stored inputs of all samples of a run, [N, ...]."""

    @property
    def shape(self) -> torch.Size:
        """Shape of all inputs together."""

    def take(self, indices: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """Return the inputs of a minibatch.

        Args:
            indices: Sample indices [K, B].
            turn: Position of the minibatch in its round.
            part: Domains and samples of this process; None for all.
        """

    def iterate(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the inputs of one set of sample indices after the other, for an evaluation."""


class Resident:
    """Input store on the device. On a CPU, the inputs may be in memory or in a memory-mapped file."""

    def __init__(self, inputs: Tensor):
        self.inputs = inputs

    @property
    def shape(self) -> torch.Size:
        """Shape of all inputs together."""
        return self.inputs.shape

    def take(self, indices: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """Return the inputs of a minibatch."""
        return self.inputs[indices if part is None else indices[part]]

    def iterate(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the inputs of one set of sample indices after the other."""
        for part in parts:
            yield self.inputs[part]


def fits_on_device(inputs: Tensor, device: torch.device) -> bool:
    """Return True if the inputs take at most half of the free memory of the device. A CPU always returns True."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # unused memory that torch keeps
    return inputs.nbytes <= free / 2
