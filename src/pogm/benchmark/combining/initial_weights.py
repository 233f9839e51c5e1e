"""Digest of the initial weights of a trial, derived from the trial: no weights file and no run folder is needed."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.base import Domain
from pogm.diagnostics import Probe
from pogm.engine.task import Task
from pogm.models.weights import RANDOM
from pogm.modifiers.base import Modifier

# Training settings that initial weights do not depend on, with one value for all trials. With a file of weights, the
# file is compared by its hash, and only the weights that it does not contain, such as those of the head, are drawn.
IRRELEVANT: dict[str, Any] = {"weights": RANDOM, "dropout": 0.0, "lr": 1.0, "weight_decay": 0.0, "batch_size": 1}


def digest_initial_weights(trial: Trial) -> str:
    """Return a digest that is equal for trials with the same initial weights, those of the head included.

    Initial weights are determined by the network, its weights file, the seed of the weights (`Trial.init_seed`), the
    number of classes, and those parts of the algorithm and the modifiers that build or change the network.
    """
    task, kind = trial.task(None), type(trial.algorithm)
    builds_network = kind.build is not Algorithm.build or kind.featurizer is not Algorithm.featurizer
    relevant = replace(
        task,
        load=_no_data,
        algorithm=trial.algorithm if builds_network else Algorithm(),
        modifiers=tuple(modifier for modifier in trial.modifiers if type(modifier).network is not Modifier.network),
        training=replace(task.training, **IRRELEVANT),
        seed=0,
        init_seed=trial.weights_seed,
        trial_seed=0,
        probe=Probe(),
        probe_capacity=0,
    )
    return f"{trial.training.weights} {_digest_random_weights(relevant)}"


@lru_cache(maxsize=256)  # runs of a sweep often differ only in settings that do not change the network
def _digest_random_weights(task: Task) -> str:
    found = hashlib.sha256()
    for name, leaf in task.build_network().named_parameters():
        found.update(f"{name} {tuple(leaf.shape)}".encode())
        found.update(leaf.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _no_data() -> list[Domain]:
    """Return no data. All tasks have this loader, so tasks that differ only in their data share a cache entry."""
    return []
