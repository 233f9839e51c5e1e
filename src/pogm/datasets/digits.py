"""The digits that the embedded datasets are made of: 1,797 handwritten ones, 8×8, that scikit-learn ships."""

import torch
from torch import Tensor

from pogm.datasets.base import Training

EMBEDDED = Training(network="mlp", batch_size=32)  # learns these in a second on a CPU


def read_digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] as uint8 (their 17 grey levels spread over 0…255) and labels [1797]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images) * (255 / 16)
    return images.round().to(torch.uint8), torch.from_numpy(digits.target).long()
