"""Rows of combined models in tables: their members, how those were selected, and their cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pogm.benchmark.results.record_file import finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Selection

COMBINATION = "combination"  # entry of the trial of a combination of runs


def combination_notes(runs: Iterable[Run]) -> dict[str, str]:
    """Return, by label, how many runs the combinations of a row consist of, and the time of their training."""
    by_label: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if facts := run.trial.get(COMBINATION):
            by_label.setdefault(run.label, []).append(facts)
    return {label: _note(facts) for label, facts in by_label.items()}


def member_selection_notes(runs: Iterable[Run], selection: Selection) -> tuple[str, ...]:
    """Return a footnote that says how the members of combinations were selected, if that is not the rule of a table."""
    labels = dict.fromkeys(run.label for run in runs if run.trial.get(COMBINATION))
    if not labels or selection.name == TRAINING_DOMAIN.name:
        return ()
    return (
        "The steps of the members, and the members of greedy soups, are selected by training-domain validation, not by "
        f"the rule of this table: {'; '.join(labels)}.",
    )


def _note(facts: Sequence[Mapping[str, Any]]) -> str:
    what = "weights" if "soup" in facts[0]["rule"] else "predictions"
    kept, considered = (_span([found[name] for found in facts]) for name in ("kept", "considered"))
    seconds = math.fsum(finite(found.get("seconds")) for found in facts)
    number = considered if kept == considered else f"{kept} of {considered}"
    models = f"{len(facts)} model{'s' * (len(facts) > 1)}"
    cost = "" if math.isnan(seconds) else f"; {_hours(seconds)} of training for {models}"
    return f"mean of the {what} of {number} runs{cost}"


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _hours(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
