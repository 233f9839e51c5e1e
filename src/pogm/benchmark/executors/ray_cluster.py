"""The Ray executor: run many trials on many machines."""

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

from pogm._system.cpu import count_cores
from pogm._system.errors import DiskFullError, PogmError, StoppedError, UsageError
from pogm._system.files import TEMPORARY, is_locked
from pogm.benchmark.executors.jobs import by_progress, make_jobs
from pogm.benchmark.executors.outcomes import ATTEMPTS, GIVEN_UP, Outcome, split_done, stop_sweep
from pogm.benchmark.executors.worker import describe_versions, note_failure, run_job
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import catch_stop_signals
from pogm.benchmark.runs.directory import make_folder
from pogm.benchmark.runs.options import RunOptions

AHEAD = 2  # submitted tasks per running task: no node waits for the driver, and an autoscaler sees the demand
POLL_SECONDS = 0.2  # interval between checks for a stop signal, which must not interrupt the code of Ray
STOP_SECONDS = 60  # time for the runs to write checkpoints when the driver is stopped
PAUSE_SECONDS = 1.0  # wait before a directory in use is tried again
CONNECT_SECONDS = 10  # time limit to reach a cluster; Ray itself tries for minutes
ANSWER_SECONDS = 120  # time limit for a node to start Python and read the directory; if a mount hangs, it never does
OBJECT_STORE = 100 * 2**20  # bytes; trials and outcomes are small


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """A reason to try a trial again, the maximum number of attempts, and the error after the last one."""

    attempts: int
    error: str


DIED = Unfinished(ATTEMPTS, GIVEN_UP)
IN_USE = Unfinished(60, "its folder is in use by another process; repeat the command when that process has ended")


def run_on_ray(
    trials: Sequence[Trial], root: Path, options: RunOptions, *, address: str | None = None
) -> Iterator[Outcome]:
    """Run every trial in ``root/<id>`` on a Ray cluster; yield each outcome when it is known, as ``run_all`` does.

    The root and the data must have the same path on every node, on shared storage where ``flock`` works between nodes.
    (NFS does that, unless mounted with ``local_lock``; Lustre, if mounted with ``flock``. Elsewhere, do not let two
    drivers run the same sweep.)

    A trial takes as many CPUs of a node as it has threads. With the device "cuda", or "auto" if some node has a GPU,
    trials that are alike and at one step train as one batch on one GPU. If a worker or node dies, its trials are
    resumed alone from their last checkpoints. A trial with a directory in use is tried again later, and reported if
    that lasts. A driver that is stopped waits for checkpoints. If a driver is killed, Ray ends its workers; the same
    call resumes them.

    Args:
        trials: The trials.
        root: The directory of the run directories.
        options: Options of the runner.
        address: Address of a running cluster; None to start Ray on this machine and to end it afterwards.
    """
    root = root.absolute()  # nodes have other working directories
    options = dataclasses.replace(options, data=options.data and options.data.absolute())
    done, waiting = split_done(trials, root)
    yield from (Outcome(trial, ran=False) for trial in done)
    if not waiting:
        return
    make_folder(root)
    with connect(address, options.threads) as ray:
        resources = required_resources(ray, options)
        if address is not None:
            check_nodes(ray, root, resources)
        yield from _run_tasks(ray, waiting, root, options, resources)


def _run_tasks(
    ray: Any, trials: Sequence[Trial], root: Path, options: RunOptions, resources: dict[str, int]
) -> Iterator[Outcome]:
    jobs = deque(make_jobs(trials, root, options, on_gpu=bool(resources["GPU"])))
    # Ray would repeat a batch as a batch, and repeat forever what runs out of memory: we repeat trials ourselves.
    task = ray.remote(num_cpus=resources["CPU"], num_gpus=resources["GPU"], max_retries=0)(_task)
    busy: dict[Any, list[Trial]] = {}
    attempts: Counter[tuple[str, Unfinished]] = Counter()
    with catch_stop_signals() as stop:
        try:
            while jobs or busy:
                most = AHEAD * max(task_slots(ray, resources), 1)  # computed again each time, because nodes come and go
                while jobs and len(busy) < most:
                    job = jobs.popleft()
                    busy[task.remote(job, root, options)] = job
                ended, _ = ray.wait(list(busy), timeout=POLL_SECONDS)
                if stop.signal is not None:
                    raise stop.error(root, many=True)
                for reference in ended:
                    job = busy.pop(reference)
                    result = _result(ray, reference, job)
                    if isinstance(result, list):
                        yield from map(Outcome, job, result)
                        continue
                    for trial in job:
                        attempts[trial.id, result] += 1
                        if attempts[trial.id, result] < result.attempts:
                            jobs.append([trial])
                        else:
                            if result == DIED:
                                note_failure(trial, root, PogmError(GIVEN_UP))
                            yield Outcome(trial, result.error)
        except DiskFullError as error:
            raise stop_sweep(trials, root, error) from error
        finally:
            _cancel(ray, list(busy))


def _task(job: list[Trial], root: Path, options: RunOptions) -> list[str | None] | Unfinished | DiskFullError:
    """Run a job on a node."""
    if not root.is_dir():  # the node may have joined after the check of the nodes
        return [f"Expected the folder {root} on {socket.gethostname()}; found none. Mount it there."] * len(job)
    if len(by_progress(job, root)) > 1 or _is_in_use(job, root):
        time.sleep(PAUSE_SECONDS)
        return IN_USE
    try:
        errors = run_job(job, root, options)
    except StoppedError:  # a signal to this process does not end the sweep
        return DIED
    except DiskFullError as error:
        return error
    return IN_USE if _is_in_use(job, root) else errors


def _is_in_use(job: list[Trial], root: Path) -> bool:
    return any(is_locked(root / trial.id) for trial in job)


def _result(ray: Any, reference: Any, job: list[Trial]) -> list[str | None] | Unfinished:
    """Return the result of a task that has ended.

    Raises:
        DiskFullError: If the disk is full.
    """
    try:
        result: list[str | None] | Unfinished | DiskFullError = ray.get(reference)
    except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:  # the node cannot read the trial
        return [str(error)] * len(job)
    except ray.exceptions.RayError:
        return DIED
    if isinstance(result, DiskFullError):
        raise result
    return result


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Cancel tasks: running ones receive SIGINT and write a checkpoint."""
    for task in reversed(tasks):  # waiting tasks first, or they would start
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)


# The cluster.


@contextmanager
def connect(address: str | None, threads: int) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; return the module ``ray`` with its output switched off."""
    ray = import_ray()
    if address is None:
        size = {"num_cpus": max(count_cores(), threads), "object_store_memory": OBJECT_STORE}
        options: dict[str, Any] = {"address": "local", "include_dashboard": False, **size}
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
            signal.signal(signal.SIGTERM, before)  # Ray does not restore it


def import_ray() -> Any:
    """Import the optional package Ray without usage statistics and without messages about workers that die."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # skips every line; read when the package is imported
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"Expected the package ray for --executor ray; found: {error}. "
            'Install it on every node: pip install "pogm[ray]"'
        ) from error


def _check_address(address: str) -> None:
    """Raise an error if no server listens at the address."""
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


def required_resources(ray: Any, options: RunOptions) -> dict[str, int]:
    """Return the CPUs and GPUs of a task; raise an error if no node has them, because the task would wait forever."""
    device = options.engine.device
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Expected the device auto, cpu or cuda with Ray; found {device!r}. Leave the number out.")
    on_gpu = device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU"))
    resources = {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": options.threads, "GPU": 0}
    if not _suitable_nodes(ray, resources):
        wanted = " and ".join(f"{count} {kind}" for kind, count in resources.items() if count)
        raise UsageError(
            f"Expected a Ray node with {wanted}; found none. Pass --device cpu or fewer --threads, or add such a node."
        )
    return resources


def _suitable_nodes(ray: Any, resources: dict[str, int]) -> list[dict[str, Any]]:
    """Return the living nodes on which a task can run."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in nodes if all(node["Resources"].get(kind, 0) >= count for kind, count in resources.items())]


def task_slots(ray: Any, resources: dict[str, int]) -> int:
    """Return the number of tasks that can run at the same time."""
    wanted = {kind: count for kind, count in resources.items() if count}
    nodes = _suitable_nodes(ray, resources)
    return sum(min(int(node["Resources"][kind] // count) for kind, count in wanted.items()) for node in nodes)


def check_nodes(ray: Any, root: Path, resources: dict[str, int]) -> None:
    """Raise an error unless every suitable node sees the root and has the same versions as this machine."""
    nodes = _suitable_nodes(ray, resources)
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    inspect = ray.remote(num_cpus=0, max_retries=0)(_inspect)
    with NamedTemporaryFile(dir=root, suffix=TEMPORARY) as token:  # another directory may have the same path
        answers = [
            inspect.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(token.name)
            for node in nodes
        ]
        ray.wait(answers, num_returns=len(answers), timeout=ANSWER_SECONDS)
        for node, answer in zip(nodes, answers, strict=True):
            _check_answer(ray, answer, node["NodeManagerAddress"], root)


def _inspect(token: str) -> tuple[bool, str]:
    """Return whether a node sees a file, and its versions."""
    return Path(token).exists(), describe_versions()


def _check_answer(ray: Any, answer: Any, name: str, root: Path) -> None:
    try:
        seen, versions = ray.get(answer, timeout=0)
    except ray.exceptions.RayError as error:  # including no answer in time
        raise UsageError(
            f"Expected the Ray node {name} to run pogm; found: {error}. Install the same there as here."
        ) from error
    if not seen:
        raise UsageError(
            f"Expected every Ray node to see {root}; found that {name} does not. "
            "Choose an --out on storage that all of them share, at the same path."
        )
    if versions != (expected := describe_versions()):
        raise UsageError(f"Expected {expected} on every Ray node; found {versions} on {name}. Install the same on all.")
