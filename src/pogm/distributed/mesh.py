"""Device mesh of a run: one axis divides the domains among processes, the other the samples."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Mesh:
    """Mesh of D × S processes.

    The D groups train different domains. The S processes of a group train the same domains on different samples.
    The process with rank g · S + s has index s in group g.
    """

    domains: int  # D
    samples: int  # S

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.domains * self.samples

    def coordinates(self, rank: int) -> tuple[int, int]:
        """Return the group of a process, and its index in the group."""
        return divmod(rank, self.samples)

    def partition_domains(self, num_domains: int) -> list[range]:
        """Return the domains of each group: consecutive ones, with sizes that differ by at most one."""
        cuts = [number * num_domains for number in range(self.domains + 1)]
        bounds = [-(-cut // self.domains) for cut in cuts]
        return [range(start, stop) for start, stop in pairwise(bounds)]
