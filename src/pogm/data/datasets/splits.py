"""DomainBed's split of a domain into a training part and a validation part, and its hash of seeds."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError

HOLDOUT = 0.2  # fraction of a domain in the validation part


def seed_hash(*parts: Any) -> int:
    """Return a seed computed from ints, strings and lists; it is the same on every machine."""
    return int(hashlib.md5(str(parts).encode()).hexdigest(), 16) % 2**31


def split(count: int, domain: int, trial_seed: int, holdout: float = HOLDOUT, name: str = "") -> tuple[Tensor, Tensor]:
    """Split the images of a domain at random.

    Args:
        count: Number of images.
        domain: Number of the domain.
        trial_seed: Seed of the split.
        holdout: Fraction of the images in the *out* part.
        name: Name of the domain, for the error.

    Returns:
        Indices of the *in* part, used for training, and of the *out* part, used for validation.

    Raises:
        DataError: If one of the parts would be empty.
    """
    order = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(count * holdout)
    if held_out == 0 or held_out == count:
        raise DataError(
            f"Expected domain {name or domain} to leave both a training and a validation part; found {count} images, "
            f"of which {held_out} would be held out. Give it more images."
        )
    return torch.tensor(order[held_out:]), torch.tensor(order[:held_out])
