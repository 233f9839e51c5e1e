"""A minibatch of every domain.

Names of axes in this package: T trials, K domains, B samples, C classes, N images, P parameters.
"""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Minibatch with B samples of each of K domains."""

    x: Tensor  # inputs [K, B, ...]; for a module that takes several inputs, a dictionary of such tensors
    y: Tensor  # targets [K, B, ...]: class indices [K, B], class probabilities [K, B, C], or those of another loss
