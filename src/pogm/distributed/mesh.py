"""How the processes of one run are arranged: groups that share the domains, and processes that share the samples."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Mesh:
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
