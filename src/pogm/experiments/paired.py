"""Plans of paired comparisons: every method sees the same data, initial weights and minibatches."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pogm.experiments import base
from pogm.experiments.base import Plan, Scale
from pogm.experiments.trials import default_trial

PHOTOGRAPHS: dict[str, Any] = {
    "steps": 1001,
    "evaluate_every": 250,
    "large_network": "resnet50_v1",
    "precision": "bf16",
    "latest_start": 300,  # of 1,001 minibatches; Fishr starts at 1,500 of DomainBed's 5,001
}
LENGTHS: dict[str, dict[str, Any]] = {  # by scale: longer runs and more seeds than in the tables of the paper
    "embedded": {"steps": 301, "evaluate_every": 30, "network": None, "seeds": 10},
    "mnist": {"steps": 2001, "evaluate_every": 200, "seeds": 3, "precision": "bf16"},
    "pacs": PHOTOGRAPHS | {"seeds": 3},
    "office_caltech": PHOTOGRAPHS | {"steps": 301, "evaluate_every": 50, "latest_start": 100, "seeds": 5},
    "small": {"seeds": 10},
    "features": {"seeds": 10},
}
OPTIONS = {  # command-line options that set a field of a scale
    "steps": ("--steps",),
    "evaluate_every": ("--evaluate-every",),
    "evaluation": ("--evaluation",),
    "seeds": ("--trials",),
    "precision": ("--precision",),
    "network": ("--network",),
    "large_network": ("--network", "--weights"),
    "latest_start": ("--steps",),
}


def paired_scale(scale: Scale, **more: Any) -> Scale:
    """Return the scale with the steps, seeds and network of a paired comparison, unless options set them.

    Args:
        scale: The scale of the command line.
        more: Fields of the scale, in place of those of all paired comparisons.
    """
    longer = LENGTHS.get(scale.name, {}) | more
    return replace(scale, **{k: v for k, v in longer.items() if not any(map(scale.was_given, OPTIONS[k]))})


def plan_rows(scale: Scale, rows: Iterable[base.Row], **more: Any) -> Plan:
    """Plan every row on every dataset with every domain held out and the same seeds; see `paired_scale`."""
    longer = paired_scale(scale, **more)
    return {
        row: [
            default_trial(longer, dataset, row, held_out, seed)
            for seed in range(longer.seeds)
            for dataset in longer.datasets
            for held_out in range(len(longer.dataset(dataset).domains))
        ]
        for row in rows
        if scale.selects(row)
    }
