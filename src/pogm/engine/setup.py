"""Set-up of a session: checks, deterministic mode, and the data of all tasks."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from pogm._system.determinism import deterministic_algorithms, nondeterministic_operation
from pogm._system.errors import UsageError
from pogm.data.datasets.base import Domain
from pogm.engine.sampling import SampleIndices, build_sample_indices
from pogm.engine.task import Task

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


def check_alike(tasks: Sequence[Task], mixes_batch_sizes: bool = False) -> None:
    """Raise a UsageError if tasks cannot train in one session.

    Values that are not floats may change shapes or code paths, so they must be equal, except the minibatch size if
    ``mixes_batch_sizes``.
    """
    first = tasks[0].shape(not mixes_batch_sizes)
    for task in tasks:
        other = task.shape(not mixes_batch_sizes)
        differing = [name for name in first.keys() | other.keys() if first.get(name) != other.get(name)]
        if differing:
            raise UsageError(
                "Expected the trials of a batch to differ only in floats, seeds and held-out domains; found "
                f"different values of {', '.join(sorted(differing))}. Train them separately."
            )


@contextmanager
def deterministic_mode(task: Task, device: torch.device) -> Iterator[None]:
    """Enable deterministic kernels while a session computes. On a CPU all kernels are deterministic already.

    Raises:
        UsageError: The task uses an operation that has no deterministic kernel.
    """
    try:
        with ExitStack() as stack:
            if device.type == "cuda":
                stack.enter_context(deterministic_algorithms())
            yield
    except Exception as error:
        operation = nondeterministic_operation(error)
        if operation is None:
            raise
        raise UsageError(
            f"Expected operations with a deterministic kernel, for a deterministic run; found {operation}, which has "
            f"none, in {_parts_of(task)}. Replace the part that uses it, or leave --deterministic out."
        ) from error


def _parts_of(task: Task) -> str:
    """Return the names of all parts of a task that compute on the device."""
    modifiers = [f"the modifier {type(modifier).__name__}" for modifier in task.modifiers]
    transform = f"the transform {type(task.transform).__name__}"
    names = [f"the algorithm {type(task.algorithm).__name__}", f"the network {task.training.network}", *modifiers]
    return f"one of {', '.join(names)} and {transform}"


def load_domains(tasks: Sequence[Task], device: torch.device) -> tuple[list[Domain], list[SampleIndices], list[int]]:
    """Load the data of all tasks. Tasks with the same data share it.

    Returns:
        All domains; the sample indices of each task; and the number of samples in each domain and split (the segments).
    """
    loaded: list[list[Domain]] = []
    sample_indices, segments = [], list[int]()
    for task in tasks:
        domains = task.load()
        if not any(domains is other for other in loaded):
            loaded.append(domains)
        before = loaded[: next(number for number, other in enumerate(loaded) if other is domains)]
        offset = sum(len(domain.labels) for other in before for domain in other)
        task.dataset.check(domains, task.test_domains)
        balanced = task.training.class_balanced
        names = task.dataset.domains
        indices, segments = build_sample_indices(
            domains, task.test_domains, task.trial_seed, device, offset, balanced, names, task.transform, task.samples
        )
        sample_indices.append(indices)
    return [domain for domains in loaded for domain in domains], sample_indices, segments
