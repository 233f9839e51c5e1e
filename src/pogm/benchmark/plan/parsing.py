"""Parsing of trials: names and texts of a command line become a trial, checked before anything is read or written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class
from pogm.benchmark.plan.combination import Combination
from pogm.benchmark.plan.datasets import domain_index, find_dataset
from pogm.benchmark.plan.settings import apply, check_settings, settings_for
from pogm.benchmark.plan.trial import Trial
from pogm.core.hyperparameters import apply_large_defaults
from pogm.data.datasets.base import DomainDataset
from pogm.data.images.parallel import Progress, no_progress
from pogm.modifiers import modifier_class


def build_trial(
    dataset: str | DomainDataset,
    algorithm: str,
    test_domains: Sequence[str],
    *,
    data: Path | None = None,
    preset: str | None = None,
    modifiers: Sequence[str] = (),
    settings: Sequence[str] = (),
    progress: Progress = no_progress,
    **options: Any,
) -> Trial:
    """Return the trial that names and texts describe.

    Args:
        dataset: A dataset, its name, or the path of a folder of images, of a table or of a file of arrays.
        algorithm: Name of an algorithm.
        test_domains: Names or indices of the held-out domains.
        data: Folder of the datasets.
        preset: Name of a preset of the algorithm.
        modifiers: Names of modifiers.
        settings: Texts such as "kappa=0.1" or "Mixup.alpha=0.4".
        progress: Shows how many images were read.
        options: Other fields of `Trial`, such as ``steps`` or ``seed``; None for the default.

    Raises:
        UsageError: If a name is unknown, or a value is out of its range.
    """
    found = find_dataset(dataset, data, progress) if isinstance(dataset, str) else dataset
    combination = Combination(algorithm, tuple(modifiers), found)
    method = algorithm_class(algorithm)
    parts: dict[str, Any] = {
        "algorithm": apply_large_defaults(method() if preset is None else method.preset(preset), found.large),
        "training": found.training,
        "dataset": found,
        **{name: apply_large_defaults(modifier_class(name)(), found.large) for name in combination.modifiers},
    }
    if len(parts) < 3 + len(modifiers):
        raise UsageError(f"Expected each modifier once; found {', '.join(modifiers)}. Leave out the repeated one.")
    check_settings(settings, [combination], "--algorithm")
    apply(settings_for(combination, settings), parts, f"a hyperparameter of {algorithm} on {found.title}")
    return Trial.build(parts, tuple(domain_index(name, found) for name in test_domains), **options)
