"""Runs that can be combined."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from support import trial

from pogm import ERM
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import run

RATES = (1e-3, 3e-3, 1e-4, 1e-3)


def member(number: int, **options: Any) -> Trial:
    """Return a trial that shares its initial weights, data and splits with the others."""
    base = trial(ERM(), seed=10 + number, hparams_seed=number, init_seed=0)
    base = replace(base, training=replace(base.training, lr=RATES[number % len(RATES)]))
    return replace(base, **options)


def train(folder: Path, *trials: Trial) -> Path:
    """Train runs into the folder of a sweep."""
    for one in trials:
        run(one, folder / one.id)
    return folder
