"""A task: one algorithm on one dataset, as objects that the engine trains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pogm.algorithms.base import Algorithm
from pogm.core.hyperparameters import fields
from pogm.core.losses import LOSSES, SampleLoss
from pogm.core.model import Network
from pogm.data.datasets.base import Domain, DomainDataset, Training, seed_hash
from pogm.data.transforms.base import Transform
from pogm.diagnostics import Probe
from pogm.models import build_features
from pogm.models.layers import build_nonlinear_classifier
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Task:
    """One algorithm on one dataset, with some domains held out."""

    algorithm: Algorithm
    dataset: DomainDataset
    load: Callable[[], list[Domain]]  # returns the domains; the same list object for tasks with the same data
    training: Training
    test_domains: tuple[int, ...]  # numbers of the held-out domains
    seed: int = 0  # seed of the weights and the minibatches
    init_seed: int | None = None  # seed of the initial weights; None: that of `seed`
    trial_seed: int = 0  # seed of the split into "in" and "out"
    modifiers: tuple[Modifier, ...] = ()
    probe: Probe = Probe()  # noqa: RUF009  (frozen)
    probe_capacity: int = 0  # largest number of measured rounds between two evaluations
    precision: str = "fp32"  # fp32, tf32, bf16 or fp64
    evaluation: str = "all"  # samples to predict: "all", "selection" or "validation"; other accuracies are NaN
    samples: int | None = None  # largest number of samples of a training domain, for training and validation together
    # If several runs share this training: the indices of the modifiers of each run. The runs differ in modifiers that
    # do not change the training. Empty for one run with all modifiers.
    shared_by: tuple[tuple[int, ...], ...] = ()

    @property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the modifiers of each run that this task trains."""
        return self.shared_by or (tuple(range(len(self.modifiers))),)

    @property
    def num_domains(self) -> int:
        """K, the number of training domains."""
        return len(self.dataset.domains) - len(self.test_domains)

    @property
    def transform(self) -> Transform:
        """Transform from stored inputs to inputs of the network."""
        return self.dataset.transform(self.training)

    @property
    def loss(self) -> SampleLoss:
        """Loss of the task of the dataset."""
        return LOSSES["mse" if self.dataset.task == "regression" else "cross_entropy"]

    def build_network(self) -> Network:
        """Build the network with initial weights. They depend only on the seed."""
        seed = self.seed if self.init_seed is None else self.init_seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_hash("weights", seed))  # another stream than the split of the data
            make = partial(
                build_features,
                self.training.network,
                weights=self.training.weights,
                freeze_bn=self.training.freeze_bn,
                dropout=self.training.dropout,
            )
            features, width = self.algorithm.featurizer(make, self.transform.shape)
            network = self.algorithm.build(features, width, self.dataset.num_classes, self.num_domains)
            if self.training.nonlinear_classifier:
                network.head = build_nonlinear_classifier(network.head)
            for modifier in self.modifiers:
                network = modifier.network(network)
        return network

    def shape(self, with_batch_size: bool = True) -> dict[str, Any]:
        """Return everything that must be equal for tasks to train in one session.

        This is everything except floats, seeds and the numbers of the held-out domains. If the sizes of splits depend
        on the trial seed or on the held-out domains, these are included.

        Args:
            with_batch_size: Include the minibatch size.
        """
        shape = {"dataset": self.dataset, "held out": len(self.test_domains), "probe": self.probe}
        shape["probe_capacity"] = self.probe_capacity
        shape["runs"] = self.shared_by
        shape["samples"] = None if self.samples is None else (self.samples, self.test_domains)
        if not self.dataset.has_equal_splits:
            shape["trial_seed"] = self.trial_seed
        parts: dict[str, Any] = {type(part).__name__: part for part in (self.algorithm, self.training)}
        parts |= {f"{type(part).__name__}[{number}]": part for number, part in enumerate(self.modifiers)}
        for name, part in parts.items():
            shape[name] = type(part)
            values = {field.name: getattr(part, field.name) for field in fields(part)}
            shape |= {f"{name}.{n}": v for n, v in values.items() if not isinstance(v, float)}
        if not with_batch_size:
            del shape[f"{type(self.training).__name__}.batch_size"]
        return shape | {"precision": self.precision, "evaluation": self.evaluation}
