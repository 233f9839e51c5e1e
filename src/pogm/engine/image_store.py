"""Where images are while a run trains: all on the device, or on the host and streamed to it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pogm.data.transforms.base import Part


class Store(Protocol):
    """All images of a run, [N, channels, height, width] uint8."""

    @property
    def shape(self) -> torch.Size:
        """Of all of them."""

    def take(self, rows: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """The images of a minibatch's rows, or of a part of them; it is number ``turn`` of its round."""

    def passes(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of one set of rows after the other, for an evaluation."""


class Resident:
    """On the device, or on a CPU wherever the tensor is: in memory or in a mapped file."""

    def __init__(self, images: Tensor):
        self.images = images

    @property
    def shape(self) -> torch.Size:
        """Of all of them."""
        return self.images.shape

    def take(self, rows: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """Any rows, at any time."""
        return self.images[rows if part is None else rows[part]]

    def passes(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """Part by part."""
        for part in parts:
            yield self.images[part]


def fits(images: Tensor, device: torch.device) -> bool:
    """Whether the images leave half of the device's free memory to the network."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch keeps it, unused
    return images.nbytes <= free / 2
