"""A minibatch of every domain.

Names of axes in this package: T trials, K domains, B samples, C classes, N images, P parameters.
"""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Minibatch with B samples of each of K domains."""

    x: Tensor  # [K, B, ...]
    y: Tensor  # [K, B] class indices, or [K, B, C] class probabilities
