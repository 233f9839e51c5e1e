"""ColoredMNIST, and the colouring that it shares with ColoredDigits (Arjovsky et al., 2019; DomainBed's variant)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pogm.data.datasets.base import Domain, DomainDataset, partition
from pogm.data.datasets.digits import read_mnist

LABEL_NOISE = 0.25  # probability that a label is flipped
COLOR_NOISE = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}  # probability that the colour contradicts the label, by domain


class ColoredMNIST(DomainDataset):
    """Digits below five against the others, with a colour that is a misleading feature.

    Input: MNIST digits, 2×28×28.
    Label: 1 if the digit is below five, else 0; a quarter of the labels is flipped.
    Domain: how often the colour agrees with the label. The shape agrees with it in 75% of the images of all domains.
    Images: 23334, 23333, 23333.
    Paper: Arjovsky et al., Invariant Risk Minimization, 2019.
    Licence: CC BY-SA 3.0 (MNIST).
    """

    domains = tuple(COLOR_NOISE)
    num_classes = 2
    input_shape = (2, 28, 28)

    def prepare(self, root: Path | None, progress: Any) -> None:
        """Check that the files can be read."""
        read_mnist(root)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; the seed decides the domain, the label noise and the colour of every digit."""
        return make_colored_domains(*read_mnist(root), seed)


def make_colored_domains(images: Tensor, digits: Tensor, seed: int) -> list[Domain]:
    """Make one domain per colour noise from grey images [N, height, width] and their digits [N]."""
    generator = torch.Generator().manual_seed(seed)
    parts = partition(len(images), len(COLOR_NOISE), generator)
    return [
        color_digits(images[part], digits[part], noise, generator)
        for part, noise in zip(parts, COLOR_NOISE.values(), strict=True)
    ]


def color_digits(images: Tensor, digits: Tensor, noise: float, generator: torch.Generator) -> Domain:
    """Make noisy binary labels, and put each image into the red or the green channel, chosen by its label and noise."""
    labels = (digits < 5).long() ^ _draw_bernoulli(LABEL_NOISE, len(digits), generator)
    colors = labels ^ _draw_bernoulli(noise, len(digits), generator)
    channels = torch.stack([images * (colors == 0).view(-1, 1, 1), images * (colors == 1).view(-1, 1, 1)], dim=1)
    return Domain(channels, labels)


def _draw_bernoulli(probability: float, count: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, generator=generator) < probability).long()
