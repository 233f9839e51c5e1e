"""Notes of tables about methods that use more than the image itself at test time."""

from collections.abc import Iterable

from pogm.benchmark.results.records import Run

_BATCH = "the other images of the batch (64 of the test domain, unlabelled)"
_ONLINE = "unlabelled images of the test domain (batches of 64, this one and earlier ones)"
SEES_AT_TEST = {  # `sees_at_test` of the classes, whose modules import torch
    "ARM": _BATCH,
    "MTL": _BATCH,
    "ITTA": _ONLINE,
    "T3A": _ONLINE,
    "TENT": _ONLINE,
}


def adaptation_notes(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return one footnote for each kind of adaptation at test time, with the labels of the runs that use it."""
    labels: dict[str, list[str]] = {}
    for run in runs:
        parts = [run.trial.get("algorithm"), *(run.trial.get("modifiers") or ())]
        names = [part.get("name") for part in parts if isinstance(part, dict)]
        for text in dict.fromkeys(SEES_AT_TEST[name] for name in names if name in SEES_AT_TEST):
            found = labels.setdefault(text, [])
            if run.label not in found:
                found.append(run.label)
    return tuple(f"Predictions also use {text}: {', '.join(found)}." for text, found in labels.items())
