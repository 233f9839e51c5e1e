"""For very large models: where K trajectories and K inner optimizers are kept while the copies are trained in turn.

"device" is beside the model. "bf16" is there too, with a third of a trajectory's digits: every number is off by at most
2⁻⁸ of itself. "host" is the machine's own memory, where every number is as it was: the device then holds one copy, one
optimizer and one trajectory, and when trajectories meet some weights of each. A step that takes memory of the
host cannot be recorded as a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.copies import Copies, DomainCopies
from pogm.core import trees
from pogm.core.flat_params import flatten
from pogm.core.problem import Problem
from pogm.core.trajectory_reduce import Local
from pogm.core.trees import Params, Tree
from pogm.engine.engine import Engine
from pogm.engine.image_store import fits
from pogm.engine.per_domain import row_by_row, rows_like
from pogm.engine.vectorise import TrainConfig


@dataclass(frozen=True)
class Offloaded:
    """Domains one after the other; what each leaves behind goes where it is kept, and comes back from there."""

    place: str  # "bf16" or "host"
    device: torch.device  # where copies are trained
    dtype: torch.dtype  # of the weights

    def __call__(self, function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
        """Run the function for each domain and stack the results. Of gradients only the mean is kept, on the device."""
        total: list[Tree] = []

        def of_one(k: int) -> Tree:
            one = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
            result = function(one, *(trees.map_numbers(self._fetched, trees.index(other, k)) for other in others))
            if not (isinstance(result, Copies) and result.gradients):
                return result
            total[:] = [trees.add(total[0], result.gradients) if total else result.gradients]
            return result._replace(gradients={})

        count = trees.leading(batches)
        stacked = row_by_row(of_one, count, self._room)
        if total:
            stacked = stacked._replace(gradients=trees.map_numbers(lambda leaf: (leaf / count)[None], total[0]))
        return stacked

    @property
    def reduce(self) -> Local:
        """How trajectories meet: fetched from the host, or widened, part by part."""
        return Local(device=self.device) if self.place == "host" else Local(dtype=self.dtype)

    def _fetched(self, leaf: Tensor) -> Tensor:
        return leaf.to(self.device, non_blocking=True)

    def _room(self, result: Tree, count: int) -> Tree:
        """What is as large as the model goes elsewhere, the rest stays."""
        if not isinstance(result, Copies):
            return rows_like(result, count)

        def on_host(leaf: Tensor) -> Tensor:
            if not leaf.dim():  # a count, which decides what is done next
                return leaf.new_empty(count)
            pinned = self.device.type == "cuda"  # a copy from or to it can then go on beside other work
            return torch.empty((count, *leaf.shape), dtype=leaf.dtype, pin_memory=pinned)

        def narrow(leaf: Tensor) -> Tensor:
            return leaf.new_empty((count, *leaf.shape), dtype=torch.bfloat16)

        small = rows_like((result.buffers, result.losses), count)
        if self.place == "host":
            return Copies(*trees.map_numbers(on_host, (result.trajectories, result.optimizers)), *small)
        return Copies(trees.map_numbers(narrow, result.trajectories), rows_like(result.optimizers, count), *small)


def offloaded(config: TrainConfig, place: str, device: torch.device) -> TrainConfig:
    """The setting with trajectories kept in a place that is not beside the model."""
    away = Offloaded(place, device, config.dtype)
    return replace(config, problem=replace(config.problem, each_domain=away, reduce=away.reduce))


def place_of(engine: Engine, config: TrainConfig, params: Params, alone: bool) -> str:
    """Where trajectories are kept: as the engine says; with "auto" on the host, if they would not fit beside the model.

    Alone is one trial, in one process, that no probe looks at.
    """
    if not isinstance(config.algorithm, DomainCopies):
        return "device"  # there are none
    if engine.trajectories == "auto":
        size = bytes_needed(config.algorithm, config.problem, params)
        return "host" if alone and not _fit(size, engine) else "device"
    if engine.trajectories != "device" and not alone:
        raise UsageError(
            f"Expected one trial, in one process and without a probe, for trajectories={engine.trajectories!r}; found "
            "more. Leave the probe out (--probe-every 0), train trials apart, or pass --trajectories device."
        )
    return engine.trajectories


def bytes_needed(algorithm: DomainCopies, problem: Problem, params: Params) -> int:
    """Bytes on the device for what a round keeps of all domains, and for one copy and the move beside it.

    Kept are trajectories, and optimizers before and after the round. Around ERM's trajectory there is one copy more,
    and with one inner step the gradients of all domains. The copy in training, its gradient, its optimizer
    and what these pass through are counted as measured (benchmarks/memory.py), rounded up; activations are not.
    """
    shapes = flatten({name: torch.empty_like(leaf, device="meta") for name, leaf in params.items()})
    state = sum(leaf.nbytes for leaf in trees.storages(problem.optimizer.init(shapes)))
    copies = problem.num_domains + algorithm.trains_pooled
    gradients = problem.num_domains + 1 if algorithm.keeps_gradients(problem) else 0
    return copies * (shapes.flat.nbytes + 2 * state) + (7 + gradients) * shapes.flat.nbytes + 3 * state


def _fit(size: int, engine: Engine) -> bool:
    if engine.memory_gb is not None:
        return size <= engine.memory_gb * 2**30
    device = engine.place()
    if engine.deterministic and device.type == "cuda":  # what is free depends on what else runs there
        return size <= torch.cuda.get_device_properties(device).total_memory / 2
    return fits(torch.empty(size, dtype=torch.uint8, device="meta"), device)
