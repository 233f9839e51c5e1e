"""Names under which tables and reports show the datasets and the methods of runs, and the order of the runs."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pogm.core.plugins import is_path, short_name

if TYPE_CHECKING:
    from pogm.benchmark.results.records import Run


def name_runs(runs: Iterable["Run"]) -> list["Run"]:
    """Return runs under distinct and short names, in an order that depends on the trials alone."""
    return sorted(_with_short_names(_with_distinct_titles(runs)), key=_table_order)


def separate_sample_counts(runs: Iterable["Run"]) -> list["Run"]:
    """Add the number of training samples (``--samples``) to the titles of datasets; fewer samples come first.

    Tables then have one column or one table for each number, and compare methods with equal numbers.
    """
    ordered = sorted(runs, key=lambda run: (run.dataset, run.trial.get("samples", sys.maxsize)))
    return [
        run if count is None else _with_title(run, f"{run.dataset} ({count} samples per domain)")
        for run, count in ((run, run.trial.get("samples")) for run in ordered)
    ]


def _with_distinct_titles(runs: Iterable["Run"]) -> list["Run"]:
    """Add a part of the content's digest to the titles of image folders with the same name but different images."""
    runs = list(runs)
    contents: dict[str, set[object]] = {}
    for run in runs:
        contents.setdefault(run.dataset, set()).add(run.trial["dataset"].get("content"))
    return [
        _with_title(run, f"{run.dataset} ({str(run.trial['dataset'].get('content'))[:6]})")
        if len(contents[run.dataset]) > 1
        else run
        for run in runs
    ]


def _with_short_names(runs: Iterable["Run"]) -> list["Run"]:
    """Replace the paths of classes of other packages by the names of the classes, in labels and names of datasets.

    A path stays if two paths would get the same name, or if a class of pogm has the name.
    """
    runs = list(runs)
    labels = _short_names({run.label for run in runs})
    titles = _short_names({run.dataset for run in runs})
    renamed = [run if labels[run.label] == run.label else replace(run, label=labels[run.label]) for run in runs]
    return [_with_title(run, titles[run.dataset]) if is_path(run.dataset) else run for run in renamed]


def _short_names(names: set[str]) -> dict[str, str]:
    """Return the short name of each label, such as "Mine + Mixup" for "my_package:Mine + Mixup"."""
    parts = {name: name.split(" + ") for name in names}
    paths = {part for found in parts.values() for part in found if is_path(part)}
    if not paths:
        return {name: name for name in names}
    from pogm.algorithms import all_algorithms
    from pogm.data.datasets import all_datasets
    from pogm.modifiers import all_modifiers

    kept = {path for path in paths if short_name(path) in {*all_algorithms(), *all_modifiers(), *all_datasets()}}
    short = {
        name: " + ".join(short_name(part) if part in paths - kept else part for part in found)
        for name, found in parts.items()
    }
    counts = Counter(short.values())
    return {name: name if counts[short[name]] > 1 else short[name] for name in names}


def _with_title(run: "Run", title: str) -> "Run":
    return replace(run, trial={**run.trial, "dataset": {**run.trial["dataset"], "title": title}})


def _table_order(run: "Run") -> tuple[object, ...]:
    held_out = sorted(run.test_domains)
    return run.dataset, run.label.casefold(), len(held_out), held_out, run.hparams_seed, run.trial_seed, run.id
