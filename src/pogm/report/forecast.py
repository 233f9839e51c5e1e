"""Estimate of the time until all runs of a folder are done."""

from collections.abc import Sequence
from statistics import median

from pogm.report.watch import FolderState, RunState


def seconds_left(folder: FolderState) -> float | None:
    """Return the seconds until all running, interrupted and waiting runs are done; None if there is no estimate.

    The time of a run is the time of its steps, multiplied by the overhead of runs (evaluation, loading). A run
    that has not started takes the median of its algorithm and dataset. The number of parallel runs stays the same.
    """
    running = [one for one in folder.started if one.state == "running"]
    medians = _median_seconds(folder.started)
    if not running or not medians:
        return None
    default = median(medians.values())
    left = {
        one.run.id: (1 - one.share) * (one.step_seconds or medians.get(_kind(one), default)) for one in folder.started
    }
    work = sum(left[one.run.id] for one in folder.started if one.state in ("running", "interrupted"))
    work += sum(medians.get((trial.dataset.title, trial.label), default) for trial in folder.waiting)
    longest = max(left[one.run.id] for one in running)
    return _overhead(folder.started) * max(work / len(running), longest)


def _kind(one: RunState) -> tuple[str, str]:
    return one.run.dataset, one.run.label


def _median_seconds(started: Sequence[RunState]) -> dict[tuple[str, str], float]:
    """Return the median time of the steps of a run, in seconds, by dataset and algorithm."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for one in started:
        if one.step_seconds is not None:
            seconds.setdefault(_kind(one), []).append(one.step_seconds)
    return {kind: median(found) for kind, found in seconds.items()}


def _overhead(started: Sequence[RunState]) -> float:
    """Return the time of runs divided by the time of their steps; of finished runs, if there are some."""
    known = [(one.state, one.overhead) for one in started if one.overhead is not None]
    finished = [ratio for state, ratio in known if state == "done"]
    ratios = finished or [ratio for state, ratio in known if state == "running"]
    return max(1.0, median(ratios)) if ratios else 1.0
