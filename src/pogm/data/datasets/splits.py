"""Which images of a domain are trained on, and which are held out: DomainBed's recipe."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError

HOLDOUT = 0.2


def seed_hash(*parts: Any) -> int:
    """A seed out of ints, strings and lists, the same on every machine."""
    return int(hashlib.md5(str(parts).encode()).hexdigest(), 16) % 2**31


def split(count: int, domain: int, trial_seed: int, holdout: float = HOLDOUT, name: str = "") -> tuple[Tensor, Tensor]:
    """The rows of a domain's *in* part, trained on, and of its *out* part, held out for validation."""
    order = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(count * holdout)
    if held_out == 0 or held_out == count:
        raise DataError(
            f"Expected domain {name or domain} to leave both a training and a validation part; found {count} images, "
            f"of which {held_out} would be held out. Give it more images."
        )
    return torch.tensor(order[held_out:]), torch.tensor(order[:held_out])
