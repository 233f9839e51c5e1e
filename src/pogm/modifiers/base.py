"""A change that composes with any algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pogm.core.batch import Batch
from pogm.core.hyper import validate
from pogm.core.model import Model, Network, Penalty


@dataclass(frozen=True)
class Modifier:
    """Override only what the change touches."""

    def __post_init__(self) -> None:
        validate(self)

    def network(self, network: Network) -> Network:
        """The network, once, when it is built."""
        return network

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Every minibatch, before the algorithm sees it."""
        return batch

    @classmethod
    def penalties(cls, modifiers: "Sequence[Modifier]") -> tuple[Penalty, ...]:
        """Those of the modifiers that have one."""
        return tuple(modifier.penalty for modifier in modifiers if type(modifier).penalty is not cls.penalty)

    def penalty(self, model: Model, batch: Batch) -> Tensor | float:
        """What joins the risk of every domain: [K], or 0."""
        return 0.0
