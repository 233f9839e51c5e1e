"""Carrying out many trials on many machines, with Ray."""

import dataclasses
import importlib
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

import pogm
from pogm.benchmark.executors import ATTEMPTS, GIVEN_UP, Outcome, batches, cores, is_begun, work
from pogm.benchmark.folder import make_folder
from pogm.benchmark.guards import stoppable
from pogm.benchmark.run import Settings
from pogm.benchmark.trial import Trial
from pogm.core.errors import StoppedError, UsageError
from pogm.core.files import TEMPORARY, is_locked

AHEAD = 2  # tasks submitted for every one that can run: no node waits for the driver, and an autoscaler sees demand
CONNECT_SECONDS = 10  # for a cluster to answer at all; Ray itself tries for minutes
ANSWER_SECONDS = 120  # for a node to start Python and look at the folder; where a mount hangs, it never does
POLL_SECONDS = 0.2  # between looks at whether a signal came: an exception inside of Ray's own code would not do
STOP_SECONDS = 60  # for the runs to leave a checkpoint when the driver is stopped
PAUSE_SECONDS = 1.0  # before a folder that is in use is looked at again
OBJECT_STORE = 100 * 2**20  # bytes; trials and outcomes are small


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
    waiting = []
    for trial in trials:
        if (root / trial.id / "done").exists():
            yield Outcome(trial)
        else:
            waiting.append(trial)
    if not waiting:
        return
    make_folder(root)
    with _connected(address, settings.threads) as ray:
        needs = _needs(ray, settings)
        if address is not None:
            _check_nodes(ray, root, needs)
        yield from _run(ray, waiting, root, settings, needs)


def _run(ray: Any, trials: Sequence[Trial], root: Path, settings: Settings, needs: dict[str, int]) -> Iterator[Outcome]:
    jobs = deque(batches(trials, root) if needs["GPU"] else ([trial] for trial in trials))
    # Ray itself would try a batch again as a batch, and without end what ran out of memory: trying again is ours.
    task = ray.remote(num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_retries=0)(_task)
    busy: dict[Any, list[Trial]] = {}
    tries: Counter[tuple[str, Unfinished]] = Counter()
    with stoppable() as stopped:
        try:
            while jobs or busy:
                most = AHEAD * max(_places(ray, needs), 1)  # nodes come and go
                while jobs and len(busy) < most:
                    job = jobs.popleft()
                    busy[task.remote(job, root, settings)] = job
                ended, _ = ray.wait(list(busy), timeout=POLL_SECONDS)
                if stopped.signal is not None:
                    raise stopped.error(root)
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
    return IN_USE if any(errors) and _in_use(job, root) else errors


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


@contextmanager
def _connected(address: str | None, threads: int) -> Iterator[Any]:
    """Ray, connected to a cluster or to one of our own, and quiet."""
    ray = _imported()
    if address is None:
        own = {"num_cpus": max(cores(), threads), "object_store_memory": OBJECT_STORE}
        options: dict[str, Any] = {"address": "local", "include_dashboard": False, **own}
    else:
        _check_address(address)
        options = {"address": address}
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise UsageError(
                f"Expected to connect to Ray on {address or 'this machine'}; found: {error} Ask `ray status` there."
            ) from error
        yield ray
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray leaves its own


def _imported() -> Any:
    """The package, which is an extra, told to call nobody and to print nothing about workers that die."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # of all lines; read when the package is imported
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"Expected the package ray for --executor ray; found: {error}. "
            'Install it on every node: pip install "pogm[ray]"'
        ) from error


def _check_address(address: str) -> None:
    """Make sure that somebody listens there."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"Expected the address of a Ray cluster, such as auto or 10.0.0.1:6379; found {address!r}: {error}. "
            "Start one with `ray start --head`, or leave --address out."
        ) from error


def _needs(ray: Any, settings: Settings) -> dict[str, int]:
    """What a task takes of a node, which some node must have, or it would wait forever."""
    device = settings.engine.device
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Expected the device auto, cpu or cuda with Ray; found {device!r}. Leave the number out.")
    on_gpu = device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU"))
    needs = {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": settings.threads, "GPU": 0}
    if not _nodes(ray, needs):
        wanted = " and ".join(f"{count} {kind}" for kind, count in needs.items() if count)
        raise UsageError(
            f"Expected a Ray node with {wanted}; found none. Pass --device cpu or fewer --threads, or add such a node."
        )
    return needs


def _nodes(ray: Any, needs: dict[str, int]) -> list[dict[str, Any]]:
    """The living nodes on which a task can run."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in nodes if all(node["Resources"].get(kind, 0) >= count for kind, count in needs.items())]


def _places(ray: Any, needs: dict[str, int]) -> int:
    """How many tasks can run at the same time."""
    wanted = {kind: count for kind, count in needs.items() if count}
    nodes = _nodes(ray, needs)
    return sum(min(int(node["Resources"][kind] // count) for kind, count in wanted.items()) for node in nodes)


def _check_nodes(ray: Any, root: Path, needs: dict[str, int]) -> None:
    """Make sure that every node on which a task can run sees the root, and would run the same versions."""
    nodes = _nodes(ray, needs)
    near = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    with NamedTemporaryFile(dir=root, suffix=TEMPORARY) as token:  # a folder of the same name would not do
        asked = [
            look.options(scheduling_strategy=near(node["NodeID"], soft=False)).remote(token.name) for node in nodes
        ]
        ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
        for node, answer in zip(nodes, asked, strict=True):
            _check_answer(ray, answer, node["NodeManagerAddress"], root)


def _look(token: str) -> tuple[bool, str]:
    """Whether a node sees a file, and what it would run."""
    return Path(token).exists(), f"pogm {pogm.__version__} with torch {torch.__version__}"


def _check_answer(ray: Any, answer: Any, name: str, root: Path) -> None:
    try:
        seen, versions = ray.get(answer, timeout=0)
    except ray.exceptions.RayError as error:  # one of them: no answer in time
        raise UsageError(
            f"Expected the Ray node {name} to run pogm; found: {error}. Install the same there as here."
        ) from error
    if not seen:
        raise UsageError(
            f"Expected every Ray node to see {root}; found that {name} does not. "
            "Choose an --out on storage that all of them share, at the same path."
        )
    if versions != (here := _look("")[1]):
        raise UsageError(f"Expected {here} on every Ray node; found {versions} on {name}. Install the same on all.")
