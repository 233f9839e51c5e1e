"""Storage of K trajectories and K inner optimizer states, for models that are too large to keep them on the device.

- "device": on the device.
- "bf16": on the device, trajectories in bfloat16, with a relative rounding error of at most 2⁻⁸.
- "host": in pinned memory of the host, exactly. The device holds one copy, one optimizer state and one trajectory, and
  parts of all trajectories while they are reduced. Such a step cannot be recorded as a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.copies import Copies, DomainCopies
from pogm.core import trees
from pogm.core.flat_params import flatten
from pogm.core.optimizers import Optimizer
from pogm.core.problem import Problem
from pogm.core.trajectory_reduce import Local
from pogm.core.trees import Params, Tree
from pogm.engine.engine import Engine
from pogm.engine.input_store import fits_on_device
from pogm.engine.per_domain import allocate_like, stack_results
from pogm.engine.vectorise import TrainConfig


@dataclass(frozen=True)
class Offloaded:
    """Loop over domains that moves trajectories and optimizer states to their storage and back."""

    storage: str  # "bf16" or "host"
    device: torch.device  # on which copies are trained
    dtype: torch.dtype  # of the weights

    def __call__(self, function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
        """Apply the function to each domain and stack the results. Of gradients, keep only the mean, on the device."""
        total: list[Tree] = []

        def apply(k: int) -> Tree:
            domain = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
            result = function(domain, *(trees.map_numbers(self._fetch, trees.index(other, k)) for other in others))
            if not (isinstance(result, Copies) and result.gradients):
                return result
            total[:] = [trees.add(total[0], result.gradients) if total else result.gradients]
            return result._replace(gradients={})

        count = trees.leading_size(batches)
        stacked = stack_results(apply, count, self._allocate)
        if total:
            stacked = stacked._replace(gradients=trees.map_numbers(lambda leaf: (leaf / count)[None], total[0]))
        return stacked

    @property
    def reduce(self) -> Local:
        """Trajectory reduction that fetches trajectories from the host, or converts them from bfloat16, in parts."""
        return Local(device=self.device) if self.storage == "host" else Local(dtype=self.dtype)

    def _fetch(self, leaf: Tensor) -> Tensor:
        return leaf.to(self.device, non_blocking=True)

    def _allocate(self, result: Tree, count: int) -> Tree:
        """Allocate buffers for ``count`` results. Tensors as large as the model go to the storage."""
        if not isinstance(result, Copies):
            return allocate_like(result, count)

        def allocate_on_host(leaf: Tensor) -> Tensor:
            if not leaf.dim():  # a count stays on the device, which reads it in the next step
                return leaf.new_empty(count)
            pinned = self.device.type == "cuda"  # asynchronous copies need pinned memory
            return torch.empty((count, *leaf.shape), dtype=leaf.dtype, pin_memory=pinned)

        def allocate_bf16(leaf: Tensor) -> Tensor:
            return leaf.new_empty((count, *leaf.shape), dtype=torch.bfloat16)

        small = allocate_like((result.buffers, result.losses), count)
        if self.storage == "host":
            return Copies(*trees.map_numbers(allocate_on_host, (result.trajectories, result.optimizers)), *small)
        trajectories = trees.map_numbers(allocate_bf16, result.trajectories)
        return Copies(trajectories, allocate_like(result.optimizers, count), *small)


def offload_trajectories(config: TrainConfig, storage: str, device: torch.device) -> TrainConfig:
    """Return the configuration with trajectories in the given storage."""
    each_domain = Offloaded(storage, device, config.dtype)
    problem = replace(config.problem, each_domain=each_domain, passes_views=False, reduce=each_domain.reduce)
    return replace(config, problem=problem)


def choose_storage(engine: Engine, config: TrainConfig, params: Params, alone: bool) -> str:
    """Return the storage of trajectories. "auto" chooses the host if they do not fit on the device.

    Args:
        engine: Options of the engine.
        config: Configuration of the trial.
        params: Weights of the network.
        alone: True for one trial in one process without a probe. Only then, trajectories can leave the device.

    Raises:
        UsageError: The engine asks for "bf16" or "host", but the trial is not alone.
    """
    if not isinstance(config.algorithm, DomainCopies):
        return "device"  # the algorithm has no trajectories
    if engine.trajectories == "auto":
        size = bytes_needed(config.algorithm, config.problem, params)
        return "host" if alone and not _fits(size, engine) else "device"
    if engine.trajectories != "device" and not alone:
        raise UsageError(
            f"Expected one trial, in one process and without a probe, for trajectories={engine.trajectories!r}; found "
            "more. Leave the probe out (--probe-every 0), train trials separately, or pass --trajectories device."
        )
    return engine.trajectories


def bytes_needed(algorithm: DomainCopies, problem: Problem, params: Params) -> int:
    """Return the bytes that a round needs on the device, without activations.

    For every domain, these are the trajectory, and the optimizer state before and after the round. The ERM centre adds
    one copy, and with one inner step the gradients of all domains. The terms for the copy in training, its gradient,
    its optimizer state and temporary tensors were measured (benchmarks/memory.py) and rounded up.
    """
    weights, dtype = sum(leaf.nbytes for leaf in params.values()), next(iter(params.values())).dtype
    state = _state_bytes(problem.optimizer, weights // dtype.itemsize, dtype)
    copies = problem.num_domains + algorithm.trains_pooled
    gradients = problem.num_domains + 1 if algorithm.keeps_gradients(problem) else 0
    return copies * (weights + 2 * state) + (7 + gradients) * weights + 3 * state


def _state_bytes(optimizer: Optimizer, count: int, dtype: torch.dtype) -> int:
    """Return the bytes of the optimizer state of ``count`` weights, from the states of one and of two weights.

    A state on the device "meta" would do, too, but operations there import torch._dynamo, which takes 2 s.
    """
    states = [optimizer.init(flatten({"weights": torch.empty(number, dtype=dtype)})) for number in (1, 2)]
    one, two = (sum(leaf.nbytes for leaf in trees.storages(state)) for state in states)
    return one + (count - 1) * (two - one)


def _fits(size: int, engine: Engine) -> bool:
    if engine.memory_gb is not None:
        return size <= engine.memory_gb * 2**30
    device = engine.torch_device()
    if engine.deterministic and device.type == "cuda":  # free memory depends on other processes
        return size <= torch.cuda.get_device_properties(device).total_memory / 2
    return fits_on_device(torch.empty(size, dtype=torch.uint8, device="meta"), device)
