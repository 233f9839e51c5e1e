"""How the work of one run is divided among processes: domains, samples, or both."""

from dataclasses import dataclass
from itertools import pairwise

from pogm.algorithms.base import Algorithm
from pogm.algorithms.trajectories import Trajectories
from pogm.core.errors import UsageError, unknown
from pogm.engine.task import Task

SPREADS = ("auto", "domains", "samples", "both")


@dataclass(frozen=True)
class Grid:
    """D groups of processes, each with domains of its own, times S processes that share the samples of a group's."""

    domains: int  # D
    samples: int  # S

    @property
    def world(self) -> int:
        """All processes: rank g · S + s is number s of group g."""
        return self.domains * self.samples

    def place(self, rank: int) -> tuple[int, int]:
        """The group of a process, and its number there."""
        return divmod(rank, self.samples)

    def dealt(self, num_domains: int) -> list[range]:
        """The domains of each group, neighbours together: as many for each, or one more for some."""
        cuts = [number * num_domains for number in range(self.domains + 1)]
        places = [-(-cut // self.domains) for cut in cuts]
        return [range(start, stop) for start, stop in pairwise(places)]


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
