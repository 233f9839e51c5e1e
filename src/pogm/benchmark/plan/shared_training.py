"""Trials that share their training: they differ only in modifiers that do not change it, such as SMA and SWAD.

The weights of ERM, ERM + SMA, ERM + SWAD and ERM + T3A are the same in training, with the same seed. One session trains
them once, and writes the results of every trial.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from pogm._system.files import canonical_json
from pogm.benchmark.plan.trial import Trial
from pogm.engine.task import Task
from pogm.modifiers import Modifier


def training_key(trial: Trial) -> str:
    """Return a text that is equal for trials that share their training."""
    values = trial.to_json()
    values["modifiers"] = values["modifiers"][: _count_training_modifiers(trial)]
    return canonical_json(values)


def share_training(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Group trials that share their training. The order in a group does not depend on the seeds."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(training_key(trial), []).append(trial)
    return [sorted(group, key=_by_modifiers) for group in groups.values()]


def make_task(trials: Sequence[Trial], data: Path | None) -> Task:
    """Return the task that trains the trials of a group once.

    Args:
        trials: Trials that share their training.
        data: Folder that contains the dataset.
    """
    first = trials[0]
    if len(trials) == 1:
        return first.task(data)
    count = _count_training_modifiers(first)
    modifiers, runs = list(first.modifiers[:count]), []
    for trial in trials:
        own = trial.modifiers[count:]
        runs.append((*range(count), *range(len(modifiers), len(modifiers) + len(own))))
        modifiers += own
    return dataclasses.replace(first.task(data), modifiers=tuple(modifiers), shared_by=tuple(runs))


def _count_training_modifiers(trial: Trial) -> int:
    """Return the number of modifiers up to the last one that changes the training.

    Those after it do not: random numbers depend on the position of a modifier, so they can be left out. If a modifier
    of the training uses the validation loss, which those after it may change, none is left out.
    """
    count = len(trial.modifiers)
    while count and not trial.modifiers[count - 1].changes_training:
        count -= 1
    return len(trial.modifiers) if Modifier.needs_validation_loss(trial.modifiers[:count]) else count


def _by_modifiers(trial: Trial) -> tuple[int, str, str]:
    return len(trial.modifiers), trial.label, canonical_json(trial.to_json()["modifiers"])
