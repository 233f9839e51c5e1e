"""Parts of methods that take inner steps on one domain after the other (a walk): Fish and PGrad."""

from torch import Tensor

from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.trees import Params


def select_domain(batch: Batch, domain: Tensor) -> Batch:
    """Return the samples of one domain, whose number is a tensor: [1, B, ...]."""
    selected: Batch = trees.map_leaves(lambda leaf: leaf.index_select(0, domain.reshape(1)), batch)
    return selected


def interpolate(start: Params, end: Params, rate: float) -> Params:
    """Return start + rate · (end − start); integers, such as counters, take the value of the end."""
    return {
        name: trees.move(leaf, end[name] - leaf, rate) if leaf.is_floating_point() else end[name]
        for name, leaf in start.items()
    }
