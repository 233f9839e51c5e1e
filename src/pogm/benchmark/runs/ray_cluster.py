"""Carrying out many trials on many machines, with Ray."""

import dataclasses
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pogm._system.errors import StoppedError
from pogm._system.files import is_locked
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import stoppable
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.local import ATTEMPTS, GIVEN_UP, Outcome, batches, is_begun, may_share, told_apart, work
from pogm.benchmark.runs.ray_nodes import check_nodes, connected, needs_of, places
from pogm.benchmark.runs.runner import Settings

AHEAD = 2  # tasks submitted for every one that can run: no node waits for the driver, and an autoscaler sees demand
POLL_SECONDS = 0.2  # between looks at whether a signal came: an exception inside of Ray's own code would not do
STOP_SECONDS = 60  # for the runs to leave a checkpoint when the driver is stopped
PAUSE_SECONDS = 1.0  # before a folder that is in use is looked at again


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """Why a trial is to be tried again, how often at most, and what is said if that was in vain."""

    most: int
    error: str


DIED = Unfinished(ATTEMPTS, GIVEN_UP)
IN_USE = Unfinished(60, "its folder is in use by another process; run the same again when that has ended")


def run_on_ray(
    trials: Sequence[Trial], root: Path, settings: Settings, *, address: str | None = None
) -> Iterator[Outcome]:
    """Run every trial in ``root/<its id>`` on a Ray cluster, giving each outcome as it comes, as ``run_all`` does.

    Without an address, Ray is started on this machine and ended afterwards; a cluster that was there before stays.
    The root and the data must lie at the same path on every node, on storage that all of them share and where
    ``flock`` holds between nodes. (NFS does that, unless mounted with ``local_lock``; Lustre, if mounted with
    ``flock``. Elsewhere, do not let two drivers run the same sweep.)

    A trial takes as many CPUs of a node as it has threads. With the device "cuda", or "auto" if some node has a GPU,
    new trials that are alike train as one batch on one GPU. A trial whose worker or node dies is tried again, alone,
    from its last checkpoint. One whose folder is in use is put off, and reported if it stays so. A driver that is
    stopped waits for checkpoints; one that is killed takes its workers along, and the same call goes on from there.
    """
    root = root.absolute()  # the nodes have working folders of their own
    settings = dataclasses.replace(settings, data=settings.data and settings.data.absolute())
    done, waiting = told_apart(trials, root)
    yield from map(Outcome, done)
    if not waiting:
        return
    make_folder(root)
    with connected(address, settings.threads) as ray:
        needs = needs_of(ray, settings)
        if address is not None:
            check_nodes(ray, root, needs)
        yield from _run(ray, waiting, root, settings, needs)


def _run(ray: Any, trials: Sequence[Trial], root: Path, settings: Settings, needs: dict[str, int]) -> Iterator[Outcome]:
    share = needs["GPU"] and may_share(settings)
    jobs = deque(batches(trials, root) if share else ([trial] for trial in trials))
    # Ray itself would try a batch again as a batch, and without end what ran out of memory: trying again is ours.
    task = ray.remote(num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_retries=0)(_task)
    busy: dict[Any, list[Trial]] = {}
    tries: Counter[tuple[str, Unfinished]] = Counter()
    with stoppable() as stopped:
        try:
            while jobs or busy:
                most = AHEAD * max(places(ray, needs), 1)  # nodes come and go
                while jobs and len(busy) < most:
                    job = jobs.popleft()
                    busy[task.remote(job, root, settings)] = job
                ended, _ = ray.wait(list(busy), timeout=POLL_SECONDS)
                if stopped.signal is not None:
                    raise stopped.error(root, many=True)
                for one in ended:
                    job = busy.pop(one)
                    result = _result(ray, one, job)
                    if isinstance(result, list):
                        yield from map(Outcome, job, result)
                        continue
                    for trial in job:
                        tries[trial.id, result] += 1
                        if tries[trial.id, result] < result.most:
                            jobs.append([trial])
                        else:
                            yield Outcome(trial, result.error)
        finally:
            _cancel(ray, list(busy))


def _task(job: list[Trial], root: Path, settings: Settings) -> list[str | None] | Unfinished:
    """Run one trial, or several as one, on a node."""
    if not root.is_dir():  # the node may have come after the others were checked
        return [f"Expected the folder {root} on {socket.gethostname()}; found none. Mount it there."] * len(job)
    begun_by_another = len(job) > 1 and any(is_begun(trial, root) for trial in job)  # a batch is of new trials
    if begun_by_another or _in_use(job, root):
        time.sleep(PAUSE_SECONDS)
        return IN_USE
    try:
        errors = work(job, root, settings)
    except StoppedError:  # whoever ended this process did not ask for the end of the sweep
        return DIED
    return IN_USE if _in_use(job, root) else errors


def _in_use(job: list[Trial], root: Path) -> bool:
    """Whether another process has one of the trials."""
    return any(is_locked(root / trial.id) for trial in job)


def _result(ray: Any, ended: Any, job: list[Trial]) -> list[str | None] | Unfinished:
    """What a task gave, or what became of it."""
    try:
        result: list[str | None] | Unfinished = ray.get(ended)
    except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:  # the node cannot read the trial
        return [str(error)] * len(job)
    except ray.exceptions.RayError:
        return DIED
    return result


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """End what is running, which sees a Ctrl-C and leaves a checkpoint, and what is not."""
    for task in reversed(tasks):  # those that wait first, or they would start
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
