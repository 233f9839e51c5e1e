"""What comes before a session: tasks that go together, the device's arithmetic, and every task's rows of the data."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from pogm._system.determinism import deterministic_algorithms, nondeterministic_operation
from pogm._system.errors import UsageError
from pogm.data.datasets.base import Domain
from pogm.engine.sampling import SampleIndices, rows_of
from pogm.engine.task import Task

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


def check_alike(tasks: Sequence[Task]) -> None:
    """What is not a float may shape the computation, so it must be the same for all."""
    first = tasks[0].shape()
    for task in tasks:
        other = task.shape()
        differing = [name for name in first.keys() | other.keys() if first.get(name) != other.get(name)]
        if differing:
            raise UsageError(
                "Expected trials that train as one to differ in floats, seeds and held-out domains alone; found "
                f"different values of {', '.join(sorted(differing))}. Train them apart."
            )


def set_precision(precision: str, device: torch.device) -> torch.dtype:
    """Prepare the device for a precision; the type of the weights."""
    if precision == "tf32" and device.type != "cuda":
        raise UsageError(
            "Expected a GPU for precision tf32, which is a mode of its matrix units; found a CPU. Pass fp32."
        )
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.deterministic = True
    return torch.float64 if precision == "fp64" else torch.float32


@contextmanager
def deterministic_mode(task: Task, device: torch.device) -> Iterator[None]:
    """Deterministic kernels while a session computes. On a CPU they are deterministic already: nothing changes.

    Raises:
        UsageError: the task uses an operation that has no deterministic kernel.
    """
    try:
        with ExitStack() as held:
            if device.type == "cuda":
                held.enter_context(deterministic_algorithms())
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
    """Names of everything in a task that computes on the device."""
    modifiers = [f"the modifier {type(modifier).__name__}" for modifier in task.modifiers]
    transform = f"the transform {type(task.transform).__name__}"
    names = [f"the algorithm {type(task.algorithm).__name__}", f"the network {task.training.network}", *modifiers]
    return f"one of {', '.join(names)} and {transform}"


def laid_out(tasks: Sequence[Task], device: torch.device) -> tuple[list[Domain], list[SampleIndices], list[int]]:
    """The domains of all tasks (those with the same data share them), and each task's rows in a table of them."""
    loaded: list[list[Domain]] = []
    rows, segments = [], list[int]()
    for task in tasks:
        domains = task.load()
        if not any(domains is other for other in loaded):
            loaded.append(domains)
        before = loaded[: next(place for place, other in enumerate(loaded) if other is domains)]
        offset = sum(len(domain.labels) for other in before for domain in other)
        task.dataset.check(domains, task.test_domains)
        balanced = task.training.class_balanced
        names = task.dataset.domains
        mine, segments = rows_of(domains, task.test_domains, task.trial_seed, device, offset, balanced, names)
        rows.append(mine)
    return [domain for domains in loaded for domain in domains], rows, segments
