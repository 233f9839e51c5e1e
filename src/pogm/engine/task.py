"""A task: what the engine trains, as objects rather than as names."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pogm.algorithms.base import Algorithm
from pogm.core.model import Network, Penalty
from pogm.datasets.base import Domain, DomainDataset, Training
from pogm.modifiers.base import Modifier
from pogm.networks import build_features
from pogm.probes.angle import AngleProbe


@dataclass(frozen=True)
class Task:
    """One algorithm on one dataset with some domains held out."""

    algorithm: Algorithm
    dataset: DomainDataset
    load: Callable[[], list[Domain]]  # the same list for tasks with the same data
    training: Training
    test_domains: tuple[int, ...]
    seed: int = 0  # of the weights and the minibatches
    trial_seed: int = 0  # of the split
    modifiers: tuple[Modifier, ...] = ()
    probe: AngleProbe | None = None
    precision: str = "fp32"

    @property
    def num_domains(self) -> int:
        """K, the training domains."""
        return len(self.dataset.domains) - len(self.test_domains)

    def build_network(self) -> Network:
        """The network with its first weights, which the seed decides and nothing else."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            features, width = build_features(self.training.network, self.dataset.input_shape, self.training.dropout)
            network = self.algorithm.build(features, width, self.dataset.num_classes, self.num_domains)
        for modifier in self.modifiers:
            network = modifier.network(network)
        return network

    def penalties(self) -> tuple[Penalty, ...]:
        """What the modifiers add to a risk."""
        return tuple(m.penalty for m in self.modifiers if type(m).penalty is not Modifier.penalty)
