"""Random search with DomainBed's seeds: a value depends on the configuration, the trial and its own name alone."""

from typing import Any

import numpy as np

from pogm.core.hyperparameters import Space, changed, fields, suited
from pogm.data.datasets.splits import seed_hash


def configuration(settings: Any, hparams_seed: int, trial_seed: int, large: bool = False) -> Any:
    """The hyperparameters of a configuration: number 0 is the defaults, the others are drawn from their spaces."""
    settings = suited(settings, large)
    if hparams_seed == 0:
        return settings
    values = {}
    for field in fields(settings):
        space = field.metadata["large"].space if large and field.metadata.get("large") else field.metadata.get("space")
        if space is not None:
            values[field.name] = drawn(space, field.metadata["draw_as"] or field.name, hparams_seed, trial_seed)
    return changed(settings, values)


def drawn(space: Space, name: str, hparams_seed: int, trial_seed: int) -> Any:
    """One value. The name enters the seed, so that adding a hyperparameter does not change the others."""
    seed = seed_hash(seed_hash(hparams_seed, trial_seed), name)
    return space.draw(np.random.RandomState(seed))
