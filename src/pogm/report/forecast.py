"""How long the runs of a folder will still take, from what they have taken so far."""

from collections.abc import Sequence
from statistics import median

from pogm.report.watch import Glance, Watched


def seconds_left(glance: Glance) -> float | None:
    """Until all that is running, interrupted or waiting is done; None where nothing runs or nothing is known.

    A run takes its steps' seconds, times what finished runs took beyond their steps (evaluations, loading). One that
    has not begun takes what others of its algorithm and dataset do. As many run at a time as are running now.
    """
    running = [one for one in glance.begun if one.state == "running"]
    usual = _usual(glance.begun)
    if not running or not usual:
        return None
    anyone = median(usual.values())
    left = {one.run.id: _left(one, usual.get(_kind(one), anyone)) for one in glance.begun}
    work = sum(left[one.run.id] for one in glance.begun if one.state in ("running", "interrupted"))
    work += sum(usual.get((trial.dataset.title, trial.label), anyone) for trial in glance.waiting)
    longest = max(left[one.run.id] for one in running)
    return _beyond_steps(glance.begun) * max(work / len(running), longest)


def _kind(one: Watched) -> tuple[str, str]:
    return one.run.dataset, one.run.label


def _left(one: Watched, usual: float) -> float:
    return (1 - one.share) * (one.cost or usual)


def _usual(begun: Sequence[Watched]) -> dict[tuple[str, str], float]:
    """Return the median time of the steps of a run, in seconds, by algorithm and dataset."""
    costs: dict[tuple[str, str], list[float]] = {}
    for one in begun:
        if one.cost is not None:
            costs.setdefault(_kind(one), []).append(one.cost)
    return {kind: median(found) for kind, found in costs.items()}


def _beyond_steps(begun: Sequence[Watched]) -> float:
    """How much longer than its steps a run takes."""
    shares = [one.seconds / one.cost for one in begun if one.state == "done" and one.cost]
    return max(1.0, median(shares)) if shares else 1.0
