"""The digits that the embedded datasets are made of: 1,797 handwritten ones, 8×8, that scikit-learn ships."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.core.hyperparameters import Power, hyper
from pogm.data.datasets.base import Training


@dataclass(frozen=True)
class SmallDigits(Training):
    """What learns 8×8 digits in a second on a CPU, and ranges around it: DomainBed's are meant for larger images."""

    network: str = hyper("mlp")
    lr: float = hyper(3e-3, Power(10, -3.5, -2), above=0)
    batch_size: int = hyper(32, Power(2, 3, 6, integer=True), least=1)


def read_digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] as uint8 (their 17 grey levels spread over 0…255) and labels [1797]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images) * (255 / 16)
    return images.round().to(torch.uint8), torch.from_numpy(digits.target).long()
