"""Some of the processes that train one model, and the tensors that go among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from pogm.distributed.world import World


@dataclass(frozen=True)
class ProcessGroup:
    """Some of the processes, in order of their ranks: a tensor of each goes to all of them."""

    ranks: "World"
    members: tuple[int, ...]
    handle: Any  # torch's; None for all processes

    @property
    def place(self) -> int:
        """This process's among them."""
        return self.members.index(self.ranks.rank)

    def gather(self, mine: Tensor) -> Tensor:
        """Everyone's tensor, all of one shape: [members, ...]."""
        mine = mine.contiguous()
        result = mine.new_empty(len(self.members) * mine.numel())
        with self.ranks.answered():
            dist.all_gather_into_tensor(result, mine.flatten(), group=self.handle)
        self._count(mine.nbytes * (len(self.members) - 1))
        return result.view(len(self.members), *mine.shape)

    def mean(self, mine: Tensor) -> Tensor:
        """The mean of everyone's tensor."""
        total = mine.clone()
        with self.ranks.answered():
            dist.all_reduce(total, group=self.handle)
        self._count(2 * mine.nbytes * (len(self.members) - 1) // len(self.members))
        return total / len(self.members)

    def exchanged(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """A tensor for each member, against one from each, of these shapes."""
        sizes = [torch.Size(shape).numel() for shape in shapes]
        result = parts[0].new_empty(sum(sizes))
        going = torch.cat([part.flatten() for part in parts])
        with self.ranks.answered():
            dist.all_to_all_single(result, going, sizes, [part.numel() for part in parts], group=self.handle)
        self._count(going.nbytes - parts[self.place].nbytes)
        return [piece.view(shape) for piece, shape in zip(torch.split(result, sizes), shapes, strict=True)]

    def _count(self, sent: int) -> None:
        """Of a ring, which is what both libraries have for tensors of this size."""
        self.ranks.sent += sent
