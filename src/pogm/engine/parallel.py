"""One task among many processes: what each of them trains, evaluates, and keeps."""

from dataclasses import replace

import torch

from pogm._system.errors import UsageError, unknown
from pogm.algorithms.base import Algorithm
from pogm.algorithms.trajectories import Trajectories
from pogm.core import trees
from pogm.core.trees import Tree
from pogm.data.transforms.base import Part
from pogm.distributed.domain_parallel import Exchange, Shared
from pogm.distributed.mesh import Grid
from pogm.distributed.world import Ranks
from pogm.engine import checkpoint
from pogm.engine.per_domain import in_a_loop
from pogm.engine.task import Task
from pogm.engine.vectorise import Progress, Setting

SPREADS = ("auto", "domains", "samples", "both")
ROWS = "state/optimizer/domains/"  # what has a row for each domain, and is kept where that is trained


class Division:
    """The part of one process in a task. Weights are everybody's, and so are minibatches until they are divided."""

    def __init__(self, task: Task, ranks: Ranks):
        self.ranks, self.num_domains = ranks, task.num_domains
        self.grid = grid_of(task, ranks.world, ranks.spread)
        self.exchange = Exchange(ranks, self.grid, task.num_domains) if self.grid.domains > 1 else None
        self.shared = Shared(ranks, self.grid) if self.grid.samples > 1 else None

    def of(self, setting: Setting) -> Setting:
        """The setting of this process."""
        problem = setting.problem
        if self.exchange is not None:
            if problem.live and pools_domains(setting.algorithm):
                raise UsageError(
                    "Expected a network whose batch norm keeps its statistics, for domains over processes and "
                    f"centre='erm', whose pooled pass needs those of all domains; found running ones in "
                    f"{min(problem.live)}. Set freeze_bn, pass --set centre=mean, or run it in one process."
                )
            problem = replace(problem, meeting=self.exchange)
        if self.shared is not None:
            if problem.live:
                raise UsageError(
                    "Expected a network whose batch norm keeps its statistics, for samples over processes; found "
                    f"running ones in {min(problem.live)}. Set freeze_bn, or start at most {self.num_domains} "
                    "processes with --spread domains."
                )
            averaged = self.shared.averaged(problem.gradient)
            problem = replace(problem, gradient=averaged, each_domain=in_a_loop)  # in the same order everywhere
        return replace(setting, problem=problem, part=self._part(setting.batch_size), everyone=self.ranks.everyone)

    def _part(self, batch_size: int) -> Part:
        """The domains and samples of every minibatch that are this process's."""
        domains = slice(None) if self.exchange is None else self.exchange.mine
        return domains, slice(None) if self.shared is None else self.shared.samples(batch_size)

    def whole(self, progress: Progress) -> Progress:
        """The progress with every domain's rows, on the first process's host. Others get what they have."""
        if self.exchange is None:
            return progress
        return _with_rows(progress, self.exchange.collected(_rows(progress)))

    def like_whole(self, progress: Progress) -> Progress:
        """The shape of that, in no memory."""
        if self.exchange is None:
            return progress
        count = self.num_domains
        rows = trees.map_leaves(
            lambda leaf: torch.empty((), dtype=leaf.dtype).expand(count, *leaf.shape[1:]), _rows(progress)
        )
        return _with_rows(progress, rows)

    def received(self, progress: Progress, whole: Progress | None) -> Progress:
        """What the first process has read, for all: each keeps the rows of its own domains, in place of its own."""
        leaves = dict(trees.named(whole)) if whole is not None else {}
        tensors = {}
        for name, shape, dtype in self.ranks.first(lambda: [(n, t.shape, t.dtype) for n, t in leaves.items()]):
            leaf = leaves[name].cpu().contiguous() if name in leaves else torch.empty(shape, dtype=dtype)
            self.ranks.hand_out(leaf)
            tensors[name] = self.exchange.own(leaf).clone() if self.exchange and name.startswith(ROWS) else leaf
        return checkpoint.filled(progress, tensors)


def _rows(progress: Progress) -> Tree:
    return progress.state.optimizer["domains"]


def _with_rows(progress: Progress, rows: Tree) -> Progress:
    optimizer = progress.state.optimizer | {"domains": rows}
    return progress._replace(state=progress.state._replace(optimizer=optimizer))


def grid_of(task: Task, world: int, spread: str = "auto") -> Grid:
    """The grid for a task, or why there is none. Domains go as far as they can; samples take the rest."""
    if spread not in SPREADS:
        raise unknown("a way to spread a run", spread, SPREADS)
    most = task.num_domains if "domains" in task.algorithm.spreads and spread != "samples" else 1
    if spread == "both":
        most = min(most, max(world // 2, 1))
    domains = max(groups for groups in range(1, most + 1) if world % groups == 0)
    grid = Grid(domains, world // domains)
    _check_allowed(task, grid)
    if world > 1 and ((spread == "domains" and grid.samples > 1) or (spread == "both" and domains == 1)):
        raise UsageError(
            f"Expected a number of processes that --spread {spread} can divide {most} domains of "
            f"{type(task.algorithm).__name__} among; found {world}. Start another number, or leave --spread out."
        )
    if task.training.batch_size % grid.samples:
        raise UsageError(
            f"Expected a batch size that {grid.samples} processes can share; found {task.training.batch_size}. "
            "Start another number of processes, or set batch_size."
        )
    return grid


def pools_domains(algorithm: Algorithm) -> bool:
    """True if some pass of the algorithm may see the samples of all domains: that of POGM's ERM centre."""
    return isinstance(algorithm, Trajectories) and algorithm.trains_pooled


def _check_allowed(task: Task, grid: Grid) -> None:
    """Refuse what many processes would compute differently."""
    kinds = [kind for kind, count in (("domains", grid.domains), ("samples", grid.samples)) if count > 1]
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
            f"Expected a run whose {' and '.join(kinds)} can be divided among {grid.world} processes without changing "
            f"it; found {' and '.join(found)}. Leave that out, choose another --spread, or run it in one process."
        )
