"""Who carries out the trials of a sweep: processes and GPUs of this machine, or a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pogm._system.errors import UsageError, unknown
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.local import Outcome, run_all
from pogm.benchmark.runs.ray_cluster import run_on_ray
from pogm.benchmark.runs.runner import Settings

EXECUTORS = ("local", "ray")
Execute = Callable[[Sequence[Trial], Path, Settings], Iterator[Outcome]]


def executor(name: str, workers: int | None = None, address: str | None = None) -> Execute:
    """The executor of that name: ``workers`` processes here, or the cluster at an address, or one that is started."""
    if name not in EXECUTORS:
        raise unknown("an executor", name, EXECUTORS)
    if name == "ray":
        return partial(run_on_ray, address=address)
    if address is not None:
        raise UsageError(f"Expected --address with --executor ray alone; found {address!r}. Add that, or leave it out.")
    return partial(run_all, workers=workers)
