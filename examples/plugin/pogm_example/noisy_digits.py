"""NoisyDigits: a dataset of another package."""

from pathlib import Path

import torch

from pogm.data.datasets.base import Domain, DomainDataset, partition
from pogm.data.datasets.digits import SmallDigits, read_digits

NOISE = (0, 32, 64, 96)  # standard deviations of the noise, in grey levels from 0 to 255


class NoisyDigits(DomainDataset):
    """Handwritten digits with additive noise.

    Input: digits of scikit-learn, 1×8×8.
    Label: the digit.
    Domain: standard deviation of Gaussian noise. A domain has a quarter of the images.
    Licence: CC BY 4.0 (UCI, Optical Recognition of Handwritten Digits).
    """

    domains = tuple(map(str, NOISE))
    num_classes = 10
    input_shape = (1, 8, 8)
    training = SmallDigits()
    steps = 201
    evaluate_every = 20
    embedded = True

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; the seed decides the domain and the noise of every digit."""
        images, labels = read_digits()
        generator = torch.Generator().manual_seed(seed)
        found = []
        for level, rows in zip(NOISE, partition(len(images), len(NOISE), generator), strict=True):
            noise = level * torch.randn(images[rows].shape, generator=generator)
            noisy = (images[rows] + noise).round().clamp(0, 255).to(torch.uint8)
            found.append(Domain(noisy[:, None], labels[rows]))
        return found
