"""One task among many processes: what each of them trains, evaluates, and keeps."""

from dataclasses import replace

import torch

from pogm._system.errors import UsageError, unknown
from pogm.algorithms.base import Algorithm
from pogm.algorithms.copies import DomainCopies
from pogm.core import trees
from pogm.core.trees import Tree
from pogm.data.transforms.base import Part
from pogm.distributed.domain_parallel import DomainParallel, SampleParallel
from pogm.distributed.mesh import Mesh
from pogm.distributed.world import World
from pogm.engine import checkpoint
from pogm.engine.per_domain import in_a_loop
from pogm.engine.task import Task
from pogm.engine.vectorise import TrainConfig, TrainState

SPREADS = ("auto", "domains", "samples", "both")
ROWS = "state/optimizer/domains/"  # what has a row for each domain, and is kept where that is trained


class ParallelStrategy:
    """The part of one process in a task. Weights are everybody's, and so are minibatches until they are divided."""

    def __init__(self, task: Task, world: World):
        self.world, self.num_domains = world, task.num_domains
        self.mesh = mesh_for(task, world.world, world.spread)
        self.domain_parallel = DomainParallel(world, self.mesh, task.num_domains) if self.mesh.domains > 1 else None
        self.sample_parallel = SampleParallel(world, self.mesh) if self.mesh.samples > 1 else None

    def of(self, config: TrainConfig) -> TrainConfig:
        """The setting of this process."""
        problem = config.problem
        if self.domain_parallel is not None:
            if problem.live and pools_domains(config.algorithm):
                raise UsageError(
                    "Expected a network whose batch norm keeps its statistics, for domains over processes and "
                    f"centre='erm', whose pooled pass needs those of all domains; found running ones in "
                    f"{min(problem.live)}. Set freeze_bn, pass --set centre=mean, or run it in one process."
                )
            problem = replace(problem, reduce=self.domain_parallel)
        if self.sample_parallel is not None:
            if problem.live:
                raise UsageError(
                    "Expected a network whose batch norm keeps its statistics, for samples over processes; found "
                    f"running ones in {min(problem.live)}. Set freeze_bn, or start at most {self.num_domains} "
                    "processes with --spread domains."
                )
            average_gradient = self.sample_parallel.average_gradient(problem.gradient)
            problem = replace(problem, gradient=average_gradient, each_domain=in_a_loop)  # in the same order everywhere
        return replace(config, problem=problem, part=self._part(config.batch_size), everyone=self.world.everyone)

    def _part(self, batch_size: int) -> Part:
        """The domains and samples of every minibatch that are this process's."""
        domains = slice(None) if self.domain_parallel is None else self.domain_parallel.mine
        return domains, slice(None) if self.sample_parallel is None else self.sample_parallel.samples(batch_size)

    def whole(self, train_state: TrainState) -> TrainState:
        """The progress with every domain's rows, on the first process's host. Others get what they have."""
        if self.domain_parallel is None:
            return train_state
        return _with_rows(train_state, self.domain_parallel.collected(_rows(train_state)))

    def like_whole(self, train_state: TrainState) -> TrainState:
        """The shape of that, in no memory."""
        if self.domain_parallel is None:
            return train_state
        count = self.num_domains
        rows = trees.map_leaves(
            lambda leaf: torch.empty((), dtype=leaf.dtype).expand(count, *leaf.shape[1:]), _rows(train_state)
        )
        return _with_rows(train_state, rows)

    def received(self, train_state: TrainState, whole: TrainState | None) -> TrainState:
        """What the first process has read, for all: each keeps the rows of its own domains, in place of its own."""
        leaves = dict(trees.named(whole)) if whole is not None else {}
        tensors = {}
        for name, shape, dtype in self.world.first(lambda: [(n, t.shape, t.dtype) for n, t in leaves.items()]):
            leaf = leaves[name].cpu().contiguous() if name in leaves else torch.empty(shape, dtype=dtype)
            self.world.hand_out(leaf)
            tensors[name] = (
                self.domain_parallel.local_rows(leaf).clone()
                if self.domain_parallel and name.startswith(ROWS)
                else leaf
            )
        return checkpoint.filled(train_state, tensors)


def _rows(train_state: TrainState) -> Tree:
    return train_state.state.optimizer["domains"]


def _with_rows(train_state: TrainState, rows: Tree) -> TrainState:
    optimizer = train_state.state.optimizer | {"domains": rows}
    return train_state._replace(state=train_state.state._replace(optimizer=optimizer))


def mesh_for(task: Task, world: int, spread: str = "auto") -> Mesh:
    """The grid for a task, or why there is none. Domains go as far as they can; samples take the rest."""
    if spread not in SPREADS:
        raise unknown("a way to spread a run", spread, SPREADS)
    most = task.num_domains if "domains" in task.algorithm.spreads and spread != "samples" else 1
    if spread == "both":
        most = min(most, max(world // 2, 1))
    domains = max(groups for groups in range(1, most + 1) if world % groups == 0)
    mesh = Mesh(domains, world // domains)
    _check_allowed(task, mesh)
    if world > 1 and ((spread == "domains" and mesh.samples > 1) or (spread == "both" and domains == 1)):
        raise UsageError(
            f"Expected a number of processes that --spread {spread} can divide {most} domains of "
            f"{type(task.algorithm).__name__} among; found {world}. Start another number, or leave --spread out."
        )
    if task.training.batch_size % mesh.samples:
        raise UsageError(
            f"Expected a batch size that {mesh.samples} processes can share; found {task.training.batch_size}. "
            "Start another number of processes, or set batch_size."
        )
    return mesh


def pools_domains(algorithm: Algorithm) -> bool:
    """True if some pass of the algorithm may see the samples of all domains: that of POGM's ERM centre."""
    return isinstance(algorithm, DomainCopies) and algorithm.trains_pooled


def _check_allowed(task: Task, mesh: Mesh) -> None:
    """Refuse what many processes would compute differently."""
    kinds = [kind for kind, count in (("domains", mesh.domains), ("samples", mesh.samples)) if count > 1]
    spreads = {type(task.algorithm).__name__: task.algorithm.spreads}
    spreads |= {type(modifier).__name__: modifier.spreads for modifier in task.modifiers}
    found = [name for name, allowed in spreads.items() if not set(kinds) <= set(allowed)]
    if kinds and task.probe.every:
        found.append("a probe")
    pooled = "domains" in kinds and pools_domains(task.algorithm)
    if pooled:  # a process would mix the samples of its own domains alone
        found += [type(m).__name__ for m in task.modifiers if m.mixes_samples and type(m).__name__ not in found]
    if task.training.dropout > 0 and ("samples" in kinds or (pooled and task.algorithm.minibatches > 1)):
        found.append("dropout")
    if found:
        raise UsageError(
            f"Expected a run whose {' and '.join(kinds)} can be divided among {mesh.world} processes without changing "
            f"it; found {' and '.join(found)}. Leave that out, choose another --spread, or run it in one process."
        )
