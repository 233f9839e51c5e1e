"""Parallel strategy: what each process of a run trains, evaluates and stores."""

from dataclasses import replace

import torch

from pogm._system.errors import UsageError, unknown_name_error
from pogm.algorithms.base import Algorithm
from pogm.algorithms.copies import DomainCopies
from pogm.core import trees
from pogm.core.trees import Tree
from pogm.data.transforms.base import Part
from pogm.distributed.domain_parallel import DomainParallel, SampleParallel
from pogm.distributed.mesh import Mesh
from pogm.distributed.world import World
from pogm.engine import checkpoint
from pogm.engine.per_domain import map_by_loop
from pogm.engine.task import Task
from pogm.engine.vectorise import TrainConfig, TrainState

SPREADS = ("auto", "domains", "samples", "both")
DOMAIN_ROWS = "state/optimizer/domains/"  # tensors with a row for each domain, stored in the process that trains it


class ParallelStrategy:
    """Part of one process in a task. All processes have the same weights and draw the same minibatches.

    Each process then trains on its part of every minibatch.
    """

    def __init__(self, task: Task, world: World):
        self.world, self.num_domains = world, task.num_domains
        self.mesh = mesh_for(task, world.size, world.spread)
        self.domain_parallel = DomainParallel(world, self.mesh, task.num_domains) if self.mesh.domains > 1 else None
        self.sample_parallel = SampleParallel(world, self.mesh) if self.mesh.samples > 1 else None

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration of this process.

        Raises:
            UsageError: The network has batch norm with running statistics, which this mesh would change.
        """
        problem = config.problem
        if self.domain_parallel is not None:
            if problem.live and pools_domains(config.algorithm):
                raise UsageError(
                    "Expected frozen batch norm to divide domains among processes with centre='erm', because its "
                    f"pooled pass needs the statistics of all domains; found running statistics in {min(problem.live)}."
                    " Set freeze_bn=true, pass --set centre=mean, or run it in one process."
                )
            problem = replace(problem, reduce=self.domain_parallel)
        if self.sample_parallel is not None:
            if problem.live:
                raise UsageError(
                    "Expected frozen batch norm to divide samples among processes; found running statistics in "
                    f"{min(problem.live)}. Set freeze_bn=true, or start at most {self.num_domains} processes with "
                    "--spread domains."
                )
            average_gradient = self.sample_parallel.average_gradient(problem.gradient)
            # A loop, so that all processes communicate in the same order.
            problem = replace(problem, gradient=average_gradient, each_domain=map_by_loop)
        part, group = self._part(config.batch_size), self.world.all_ranks
        return replace(config, problem=problem, part=part, evaluation_group=group)

    def _part(self, batch_size: int) -> Part:
        """Return the domains and samples of every minibatch that this process trains on."""
        domains, samples = self.domain_parallel, self.sample_parallel
        return (
            slice(None) if domains is None else domains.local_domains,
            slice(None) if samples is None else samples.local_samples(batch_size),
        )

    def gather_state(self, train_state: TrainState) -> TrainState:
        """Return the state with the rows of all domains, on the host of rank 0. Other ranks return their own state."""
        if self.domain_parallel is None:
            return train_state
        return _with_domain_rows(train_state, self.domain_parallel.gather_to_first(_domain_rows(train_state)))

    def state_template(self, train_state: TrainState) -> TrainState:
        """Return a template of the gathered state, used to validate a checkpoint. It takes no memory."""
        if self.domain_parallel is None:
            return train_state
        count = self.num_domains
        rows = trees.map_leaves(
            lambda leaf: torch.empty((), dtype=leaf.dtype).expand(count, *leaf.shape[1:]), _domain_rows(train_state)
        )
        return _with_domain_rows(train_state, rows)

    def distribute_state(self, train_state: TrainState, gathered: TrainState | None) -> TrainState:
        """Broadcast the state that rank 0 has read. Each process keeps the rows of its own domains.

        Args:
            train_state: State of this process, as a template.
            gathered: State with the rows of all domains on rank 0; None on other ranks.
        """
        leaves = dict(trees.named_leaves(gathered)) if gathered is not None else {}
        tensors = {}
        for name, shape, dtype in self.world.run_on_first(lambda: [(n, t.shape, t.dtype) for n, t in leaves.items()]):
            leaf = leaves[name].cpu().contiguous() if name in leaves else torch.empty(shape, dtype=dtype)
            self.world.broadcast(leaf)
            if self.domain_parallel and name.startswith(DOMAIN_ROWS):
                leaf = self.domain_parallel.local_rows(leaf).clone()
            tensors[name] = leaf
        return checkpoint.fill_template(train_state, tensors)


def _domain_rows(train_state: TrainState) -> Tree:
    return train_state.state.optimizer["domains"]


def _with_domain_rows(train_state: TrainState, rows: Tree) -> TrainState:
    optimizer = train_state.state.optimizer | {"domains": rows}
    return train_state._replace(state=train_state.state._replace(optimizer=optimizer))


def mesh_for(task: Task, size: int, spread: str = "auto") -> Mesh:
    """Return the mesh for a task: as many groups of domains as possible, and samples within the groups.

    Args:
        task: Task to divide.
        size: Number of processes.
        spread: What the processes divide: "domains", "samples", "both" or "auto".

    Raises:
        UsageError: The task cannot be divided among these processes without changing its results.
    """
    if spread not in SPREADS:
        raise unknown_name_error("a way to spread a run", spread, SPREADS)
    most = task.num_domains if "domains" in task.algorithm.parallel_axes and spread != "samples" else 1
    if spread == "both":
        most = min(most, max(size // 2, 1))
    domains = max(groups for groups in range(1, most + 1) if size % groups == 0)
    mesh = Mesh(domains, size // domains)
    _check_allowed(task, mesh)
    if size > 1 and ((spread == "domains" and mesh.samples > 1) or (spread == "both" and domains == 1)):
        raise UsageError(
            f"Expected a number of processes that --spread {spread} can divide {most} domains of "
            f"{type(task.algorithm).__name__} among; found {size}. Start another number, or leave --spread out."
        )
    if task.training.batch_size % mesh.samples:
        raise UsageError(
            f"Expected a batch size that {mesh.samples} processes can share; found {task.training.batch_size}. "
            "Start another number of processes, or set batch_size."
        )
    return mesh


def pools_domains(algorithm: Algorithm) -> bool:
    """Return True if a pass of the algorithm uses the samples of all domains, as for the ERM centre of POGM."""
    return isinstance(algorithm, DomainCopies) and algorithm.trains_pooled


def _check_allowed(task: Task, mesh: Mesh) -> None:
    """Raise a UsageError for parts of a task that would give other results in several processes."""
    kinds = [kind for kind, count in (("domains", mesh.domains), ("samples", mesh.samples)) if count > 1]
    parallel_axes = {type(task.algorithm).__name__: task.algorithm.parallel_axes}
    parallel_axes |= {type(modifier).__name__: modifier.parallel_axes for modifier in task.modifiers}
    found = [name for name, allowed in parallel_axes.items() if not set(kinds) <= set(allowed)]
    if kinds and task.probe.every:
        found.append("a probe")
    pooled = "domains" in kinds and pools_domains(task.algorithm)
    if pooled:  # a process would mix only the samples of its own domains
        found += [type(m).__name__ for m in task.modifiers if m.mixes_samples and type(m).__name__ not in found]
    if task.training.dropout > 0 and ("samples" in kinds or (pooled and task.algorithm.minibatches > 1)):
        found.append("dropout")
    if found:
        raise UsageError(
            f"Expected a run whose {' and '.join(kinds)} can be divided among {mesh.size} processes without changing "
            f"it; found {' and '.join(found)}. Leave that out, choose another --spread, or run it in one process."
        )
