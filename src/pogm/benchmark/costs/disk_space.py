"""Disk space of runs: the network is built without memory for its weights, so that no data or weights are needed."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pogm._system.messages import log
from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.rounds import DomainRounds
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.base import DomainDataset, Training
from pogm.engine.task import Task
from pogm.models.weights import RANDOM
from pogm.modifiers.base import Modifier

ADAM_STATES = 3  # weights and two moments


def model_bytes(trial: Trial) -> int | None:
    """Return the size of the weights and buffers of a trial; None if its network cannot be built here."""
    settings = replace(trial.training, weights=RANDOM, lr=1.0, weight_decay=0.0, dropout=0.0, batch_size=1)
    algorithm = trial.algorithm
    if type(algorithm).build is Algorithm.build and type(algorithm).featurizer is Algorithm.featurizer:
        algorithm = ERM()  # has the same network
    size = _network_bytes(trial.dataset, len(trial.test_domains), settings, algorithm, trial.modifiers)
    return size if size is None or trial.precision != "fp64" else 2 * size


def checkpoint_bytes(trial: Trial) -> int | None:
    """Return the approximate size of a checkpoint, without memories of algorithms and modifiers; None as above."""
    model = model_bytes(trial)
    trains_copies = isinstance(trial.algorithm, DomainRounds)  # with moments of their own
    return None if model is None else model * (ADAM_STATES + 2 * len(trial.train_domains) * trains_copies)


class _WithoutInitialisation(TorchFunctionMode):
    """Skip the functions of ``torch.nn.init``, which on the meta device import the compiler for seconds."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        options = options or {}
        if getattr(function, "__module__", "") == nn.init.__name__:
            return args[0] if args else options["tensor"]
        return function(*args, **options)


@cache
def _network_bytes(
    dataset: DomainDataset, held_out: int, training: Training, algorithm: Algorithm, modifiers: tuple[Modifier, ...]
) -> int | None:
    task = Task(algorithm, dataset, list, training, tuple(range(held_out)), modifiers=modifiers)
    try:
        with torch.device("meta"), _WithoutInitialisation():
            network = task.build_network()
    except Exception as error:  # such as a network of a package that is not installed; the run will say it
        log.info("The size of %s with %s is not known: %s", training.network, type(algorithm).__name__, error)
        return None
    leaves = (*network.parameters(), *network.buffers())
    return sum(leaf.nelement() * leaf.element_size() for leaf in leaves)
