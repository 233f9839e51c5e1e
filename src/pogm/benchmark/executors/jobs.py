"""Jobs of an executor: which trials train together, on how many processes, and if their code is compiled."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from pogm._system.cpu import count_cores
from pogm.benchmark.costs.compile_choice import choose_compile, shape_key
from pogm.benchmark.plan.shared_training import share_training
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE
from pogm.benchmark.runs.directory import has_begun, newest_checkpoint
from pogm.benchmark.runs.options import RunOptions
from pogm.benchmark.runs.provenance import read_provenance
from pogm.engine.engine import SMALL_IMAGE_PIXELS, Engine

BATCH_SIZE = 16  # maximum number of trials in a batch
GPU_PROCESSES = 5  # maximum number of processes that share a GPU
GPU_PROCESS_BYTES = 27 * 2**30  # memory for each of them; an evaluation of small images uses up to 25 GiB
COMPILE_THREADS = 32  # maximum number of kernels that a process compiles at once, as in torch


def make_jobs(trials: Sequence[Trial], root: Path, options: RunOptions, on_gpu: bool) -> list[list[Trial]]:
    """Return lists of trials that run together. They are at one step, and share their training, if they can.

    On a GPU, trials that are alike run together, too, except those with trajectories outside the device memory. One
    list of each dataset comes first, so that the time left is known early. Otherwise the order is that of the first
    trial of each list.
    """
    makes_batches = on_gpu and options.engine.trajectories in ("auto", "device")
    most, mixes = BATCH_SIZE if makes_batches else 1, options.engine.mixes_batch_sizes()
    jobs = [job for same in by_progress(trials, root) for job in group_alike(same, most, mixes)]
    position = {trial.id: number for number, trial in enumerate(trials)}
    jobs.sort(key=lambda job: min(position[trial.id] for trial in job))
    first = {job[0].dataset: job for job in reversed(jobs)}
    return sorted(jobs, key=lambda job: job is not first[job[0].dataset])


def take_job(jobs: list[list[Trial]], root: Path, is_free: Callable[[Trial], bool]) -> list[Trial]:
    """Remove the next job; return its trials that are free.

    Trials that another process has trained in the meantime are left out; the rest may become several jobs.
    """
    free = [trial for trial in jobs.pop() if is_free(trial)]
    if len(free) <= 1:
        return free
    job, *others = [job for same in by_progress(free, root) for job in group_alike(same, len(free), True)]
    jobs.extend(others)
    return job


def halve_by_method(job: Sequence[Trial]) -> list[list[Trial]]:
    """Divide the trials of a job into two parts by their modifiers; return nothing if all have the same ones.

    A part may become several lists of trials that can train together. Floats of modifiers do not count.
    """
    kinds: dict[str, list[Trial]] = {}
    for trial in job:
        kinds.setdefault(shape_key(trial, with_batch_size=False), []).append(trial)
    lists = list(kinds.values())
    middle = len(lists) // 2
    halves = [list(chain.from_iterable(half)) for half in (lists[:middle], lists[middle:])]
    return [part for half in halves for part in group_alike(half, len(half), True)] if middle else []


def by_progress(trials: Sequence[Trial], root: Path) -> list[list[Trial]]:
    """Divide trials into lists that can train together: all done, or at the same checkpoint and all compiled or not."""
    found: dict[tuple[bool, str, bool | None], list[Trial]] = {}
    for trial in trials:
        folder = root / trial.id
        step = newest_checkpoint(folder)
        compiled = read_provenance("compiled", folder) if step else None
        found.setdefault(((folder / DONE).exists(), step, compiled), []).append(trial)  # done: without a checkpoint
    return list(found.values())


def count_gpu_processes(trials: Sequence[Trial], engine: Engine) -> int:
    """Return the number of processes that share a GPU: several for small images, if memory and CPU cores allow it.

    While one process loads data, compiles or writes models, another one trains.
    """
    if not all(is_small(trial) for trial in trials):
        return 1
    memory = torch.cuda.get_device_properties(engine.torch_device()).total_memory
    return max(min(memory // GPU_PROCESS_BYTES, count_cores() // 2, GPU_PROCESSES), 1)


def share_compile_threads(processes: int) -> int:
    """Return the number of kernels that each process compiles at once, since all processes may compile."""
    return min(max(count_cores() // max(processes, 1), 1), COMPILE_THREADS)


def is_small(trial: Trial) -> bool:
    """Return whether the inputs of a trial are so small that one run does not keep a GPU busy."""
    return math.prod(trial.dataset.transform(trial.training).shape[-2:]) <= SMALL_IMAGE_PIXELS


class CompileChoice:
    """Decides for each job of a sweep whether to compile, by the number of runs that can use the compiled code.

    Code is compiled for all minibatch sizes if the sweep has several of them.
    """

    def __init__(self, waiting: Sequence[Trial], options: RunOptions, gpus: int, sharing: int):
        self.given, self.processes, self.sharing = options, gpus * sharing, sharing
        decides = options.engine.compile == "auto" and not options.engine.deterministic and options.engine.compiles()
        self.left: Counter[str] | None = None  # runs that are not started, by what their compiled code depends on
        self.sizes: dict[str, set[int]] = {}  # their minibatch sizes
        if decides:
            self.left = Counter()
            for trial in waiting:
                key = shape_key(trial, with_batch_size=False)
                self.left[key] += 1
                self.sizes.setdefault(key, set()).add(trial.training.batch_size)

    def options(self, job: Sequence[Trial], root: Path) -> RunOptions:
        """Return the options of a job; a run that has begun keeps its first choice."""
        if self.left is None or has_begun(job[0], root):
            return self.given
        key = shape_key(job[0], with_batch_size=False)
        runs = max(math.ceil(self.left[key] / self.processes), len(share_training(job)))
        self.left.subtract(shape_key(trial, with_batch_size=False) for trial in job)
        engine = choose_compile(self.given.engine, job[0], runs, self.sharing, len(self.sizes[key]))
        return replace(self.given, engine=engine)


def group_alike(trials: Sequence[Trial], most: int, mixes_batch_sizes: bool = False) -> list[list[Trial]]:
    """Group trials that can train as one batch, up to ``most`` in a group; keep the order of the first ones.

    Trials that share their training count as one. Trials on large images stay alone: one of them keeps a GPU busy, and
    several would not fit into its memory.

    Args:
        trials: The trials.
        most: Maximum number of trials in a group.
        mixes_batch_sizes: Trials of a group may have different minibatch sizes.
    """
    alike: dict[str, list[list[list[Trial]]]] = {}
    groups: list[list[list[Trial]]] = []  # of lists of trials that share their training
    for shared in share_training(trials):
        limit = most if is_small(shared[0]) else 1
        shapes = [shape_key(trial, not mixes_batch_sizes) for trial in shared]
        found = alike.setdefault(f"{shared[0].schedule} {shapes}", [])
        if not found or len(found[-1]) == limit:
            found.append([])
            groups.append(found[-1])
        found[-1].append(shared)
    return [list(chain.from_iterable(group)) for group in groups]
