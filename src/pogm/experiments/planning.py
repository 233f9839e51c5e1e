"""Checks of a plan against the command line, and the list of its trials."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pogm._system.errors import UsageError, unknown_name_error
from pogm.benchmark.plan.settings import check_settings
from pogm.benchmark.plan.trial import Trial
from pogm.experiments.base import Experiment, Row, Scale, normalize_row_name
from pogm.experiments.trials import trial_datasets


def check_scale(chosen: Sequence[Experiment], scale: Scale) -> None:
    """Check --algorithms and --set against the rows of the chosen experiments.

    Raises:
        UsageError: If a name is not a row, if an experiment would have no row left, if none has a row for the datasets,
            or if a setting does not apply.
    """
    few = replace(scale, settings=(), algorithms=(), configurations=1, ablation=1, trials=1, seeds=1)
    plans = {one.name: one.plan(few) for one in chosen}
    if all(one.by_row and not plans[one.name] for one in chosen):
        raise UsageError(
            f"Expected datasets for which {', '.join(plans)} has rows; found none among {', '.join(scale.datasets)}. "
            "Choose another --scale or other --datasets."
        )
    rows = {normalize_row_name(row.name): row.name for plan in plans.values() for row in plan}
    for name in scale.algorithms:
        if normalize_row_name(name) not in rows:
            raise unknown_name_error(f"a row of {', '.join(plans)}", name, rows.values())
    wanted = set(map(normalize_row_name, scale.algorithms or rows.values()))
    kept = {
        name: {row: plan[row] for row in plan if normalize_row_name(row.name) in wanted} for name, plan in plans.items()
    }
    for name, plan in plans.items():
        if plan and not kept[name]:
            raise UsageError(
                f"Expected a row of {name} in --algorithms ({', '.join(row.name for row in plan)}); found "
                f"{', '.join(scale.algorithms)}. Add one, or leave out {name}."
            )
    combinations = {
        row.combination(data): None
        for plan in kept.values()
        for row, trials in plan.items()
        for data in trial_datasets(trials)
    }
    check_settings(scale.settings, list(combinations), "")
    _check_effect([row for plan in kept.values() for row in plan], scale.settings)


def _check_effect(rows: Sequence[Row], settings: Sequence[str]) -> None:
    """Raise an error for a setting that has no effect, because every row fixes it."""
    for setting in settings:
        prefix, _, name = setting.partition("=")[0].rpartition(".")
        affected = [row for row in rows if prefix in ("", "algorithm", "training", row.algorithm)]
        if affected and all(row.fixes(name) for row in affected):
            raise UsageError(
                f"Expected a setting that some row does not fix; found {setting!r}, which all rows fix "
                f"({affected[0].name}, for example). Leave it out."
            )


def all_trials(chosen: Iterable[Experiment], scale: Scale) -> list[Trial]:
    """Return every trial of several experiments once, in the order in which they run.

    Experiments with `by_row` come first, row by row. The others follow trial by trial and configuration by
    configuration, as in a sweep.
    """
    by_row: dict[str, Trial] = {}
    others: dict[str, Trial] = {}
    for one in chosen:
        (by_row if one.by_row else others).update((trial.id, trial) for trial in one.trials(scale))
    ordered = sorted(others.values(), key=lambda trial: (trial.trial_seed, trial.hparams_seed))
    return list((by_row | {trial.id: trial for trial in ordered}).values())
