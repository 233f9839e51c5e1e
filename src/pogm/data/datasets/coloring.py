"""Colours that lie: how ColoredMNIST is made (Arjovsky et al., 2019; DomainBed's variant)."""

import torch
from torch import Tensor

from pogm.data.datasets.base import Domain, shares

LABEL_NOISE = 0.25
COLOR_NOISE = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}  # how often the colour contradicts the label, by domain


def colored(images: Tensor, digits: Tensor, seed: int) -> list[Domain]:
    """One domain per colour noise, of grey images [N, height, width] and their digits."""
    generator = torch.Generator().manual_seed(seed)
    dealt = shares(len(images), len(COLOR_NOISE), generator)
    return [
        color(images[share], digits[share], noise, generator)
        for share, noise in zip(dealt, COLOR_NOISE.values(), strict=True)
    ]


def color(images: Tensor, digits: Tensor, noise: float, generator: torch.Generator) -> Domain:
    """Label 1 for digits below five, flipped at times; red or green by the label, flipped more or less often."""
    labels = (digits < 5).long() ^ _coin(LABEL_NOISE, len(digits), generator)
    colors = labels ^ _coin(noise, len(digits), generator)
    channels = torch.stack([images * (colors == 0).view(-1, 1, 1), images * (colors == 1).view(-1, 1, 1)], dim=1)
    return Domain(channels, labels)


def _coin(probability: float, count: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, generator=generator) < probability).long()
