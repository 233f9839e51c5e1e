"""How the work of one run is divided among processes: domains, samples, or both."""

from dataclasses import dataclass

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
        """The domains of each group, neighbours together: as many for all, or one more for the first of them."""
        cuts = [number * num_domains for number in range(self.domains + 1)]
        places = [-(-cut // self.domains) for cut in cuts]
        return [range(start, stop) for start, stop in zip(places, places[1:], strict=False)]


def grid_of(task: Task, world: int, spread: str = "auto") -> Grid:
    """The grid for a task, or why there is none. Domains go as far as they can; samples take the rest."""
    if spread not in SPREADS:
        raise unknown("a way to spread a run", spread, SPREADS)
    most = task.num_domains if "domains" in task.algorithm.spreads and spread != "samples" else 1
    if spread == "both":
        most = min(most, world // 2)
    grid = Grid(groups := max(d for d in range(1, most + 1) if world % d == 0), world // groups)
    if (spread == "domains" and grid.samples > 1) or (spread == "both" and grid.domains == 1 < world):
        possible = [d for d in range(1, task.num_domains + 1) if "domains" in task.algorithm.spreads or d == 1]
        raise UsageError(
            f"Expected a number of processes that --spread {spread} can divide {task.num_domains} domains among, for "
            f"{type(task.algorithm).__name__}; found {world}. Start at most {possible[-1]}, or leave --spread out."
        )
    _check(task, grid)
    return grid


def _check(task: Task, grid: Grid) -> None:
    """Refuse what a grid would compute differently."""
    over = {"domains": grid.domains > 1, "samples": grid.samples > 1}
    kinds = [kind for kind, is_so in over.items() if is_so]
    if not kinds:
        return
    reasons = [
        f"{type(part).__name__}"
        for part in (task.algorithm, *task.modifiers)
        if not task.algorithm.spreads or not set(kinds) <= set(part.spreads)
    ]
    if task.probe.every:
        reasons.append("a probe")
    if grid.samples > 1 and task.training.dropout:
        reasons.append("dropout")
    if reasons:
        raise UsageError(
            f"Expected a run whose {' and '.join(kinds)} can be divided among {grid.world} processes without changing "
            f"it; found {' and '.join(dict.fromkeys(reasons))}. Run it in one process, or leave that out."
        )
    if task.training.batch_size % grid.samples:
        raise UsageError(
            f"Expected a batch size that {grid.samples} processes can share; found {task.training.batch_size}. "
            "Start another number of processes, or set batch_size."
        )
