"""Set-up of a session: checks, deterministic mode, the data of all tasks, and the configuration of each."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from pogm._system.determinism import deterministic_algorithms, nondeterministic_operation
from pogm._system.errors import UsageError
from pogm.core.micro_batches import MicroBatches
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.data.datasets.base import Domain
from pogm.engine.engine import Engine
from pogm.engine.input_store import Resident, fits_on_device
from pogm.engine.per_domain import gradient, map_by_loop, map_by_streams, map_by_vmap
from pogm.engine.prefetch import Streamed
from pogm.engine.sampling import (
    SampleIndices,
    SampleTable,
    build_sample_indices,
    collect_labels_and_sizes,
    concatenate_inputs,
)
from pogm.engine.task import Task
from pogm.engine.vectorise import Rates, TrainConfig
from pogm.modifiers.base import Modifier

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
DOMAIN_STRATEGIES = {"loop": map_by_loop, "streams": map_by_streams, "vmap": map_by_vmap}


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


def build_table(
    tasks: Sequence[Task], domains: list[Domain], sample_indices: list[SampleIndices], engine: Engine
) -> tuple[SampleTable, Streamed | None]:
    """Return the table of all samples, and the object that streams inputs if they are not resident.

    Raises:
        UsageError: There are several tasks, and the inputs have to be streamed.
    """
    device, inputs = engine.torch_device(), concatenate_inputs(domains)
    labels, sizes = (part.to(device) for part in collect_labels_and_sizes(domains))
    if engine.images == "resident" or (engine.images == "auto" and fits_on_device(inputs, device)):
        return SampleTable(Resident(inputs.to(device)), labels, sizes), None
    if len(tasks) > 1:
        raise UsageError(
            "Expected images that fit on the device, for a batch of trials; found "
            f"{inputs.nbytes / 2**30:.1f} GiB of them, which have to be streamed. Run them one by one."
        )
    task = tasks[0]
    size, turns, target = task.training.batch_size, task.algorithm.minibatches, task.probe.target
    prefetcher = Streamed(inputs, sample_indices[0], size, turns, device, held_out=target)
    return SampleTable(prefetcher, labels, sizes), prefetcher


def build_config(
    task: Task, network: Network, table: SampleTable, engine: Engine, dtype: torch.dtype, on_streams: bool
) -> TrainConfig:
    """Return the configuration of a task.

    Args:
        task: The task.
        network: Network of all tasks of the session.
        table: Samples of all tasks of the session.
        engine: Device and execution strategy.
        dtype: Type of the weights.
        on_streams: The tasks of the session run on parallel streams, so the domains of one do not.

    Raises:
        UsageError: Two modifiers of a run do not combine.
    """
    for chosen in task.runs:
        modifiers = [task.modifiers[index] for index in chosen]
        Modifier.find_final(modifiers)
        Modifier.find_evaluated(modifiers)
        Modifier.check_test_time(modifiers)
    rates = Rates(task.training.lr, task.training.weight_decay)
    strategy = engine.choose_domain_strategy(network, pixels=math.prod(task.transform.shape[-2:]))
    if on_streams and strategy == "streams":
        strategy = "loop"
    problem = Problem(
        network=network,
        optimizer=task.algorithm.optimizer(*rates),
        num_domains=task.num_domains,
        num_classes=task.dataset.num_classes,
        gradient=gradient,
        each_domain=DOMAIN_STRATEGIES[strategy],
        passes_views=strategy == "loop",
        penalties=Modifier.penalties(task.modifiers),
        custom_risks=Modifier.find_risks(task.modifiers),
        autocast=torch.bfloat16 if task.precision == "bf16" else None,
        loss=task.loss,
        live=live_buffers(network),
        mixes=any(modifier.mixes_samples for modifier in task.modifiers if modifier.changes_training),
        micro_batches=MicroBatches.for_network(network, engine.micro_batch) if engine.micro_batch else None,
    )
    return TrainConfig(
        algorithm=task.algorithm,
        modifiers=task.modifiers,
        rates=rates,
        problem=problem,
        table=table,
        transform=task.transform,
        batch_size=task.training.batch_size,
        probe=task.probe,
        probe_capacity=task.probe_capacity,
        dtype=dtype,
    )
