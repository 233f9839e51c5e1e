"""Domains and samples over processes. Every process ends a round with the same weights.

Of the K trajectories, every process gets its slice of the weights. The inner products of slices add up to those of the
whole, so everyone can solve the same K×K problem, and then make its slice of the direction.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.flat_params import FlatParams, Layout, flat_vector, flatten, unflatten
from pogm.core.problem import Objective
from pogm.core.state import Loss
from pogm.core.trajectory_reduce import Blocks, Segments, gramians, segments, weighted_sum, within
from pogm.core.trees import Params, Tree
from pogm.distributed.mesh import Mesh
from pogm.distributed.process_group import ProcessGroup
from pogm.distributed.world import World

Gradient = Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]


class Slice(NamedTuple):
    """Some neighbouring weights of all trajectories."""

    rows: Tensor  # [N, stop − start]: K trajectories, then the centre if there is one
    layout: Layout  # of all weights
    start: int
    stop: int

    def segments(self, blocks: Blocks) -> Segments:
        """The stretches of the slice that belong to one block each."""
        return within(segments(self.layout, blocks), self.start, self.stop)


class DomainParallel:
    """A meeting of processes that each train some of the domains."""

    def __init__(self, ranks: World, mesh: Mesh, num_domains: int):
        self.ranks, self.mesh = ranks, mesh
        group, number = mesh.place(ranks.rank)
        self.dealt = mesh.dealt(num_domains)
        self.mine = slice(self.dealt[group].start, self.dealt[group].stop)
        # Processes of a group hold the same trajectories: each sends its own number's slices, in every group.
        places = [[g * mesh.samples + s for g in range(mesh.domains)] for s in range(mesh.samples)]
        self.others = ranks.among(places)
        self.addresses = places[number]

    def local_rows(self, tree: Any) -> Any:
        """The rows of the domains that are trained here."""
        return trees.map_numbers(lambda leaf: leaf[self.mine], tree)

    def all_gather(self, tree: Any) -> Any:
        """The rows of all domains, all leaves in one message: as float64, which holds them exactly."""
        leaves = trees.leaves(tree)
        most = max(map(len, self.dealt))
        flat = torch.cat([leaf.flatten(1).double() for leaf in map(_at_least_2d, leaves)], 1)
        filled = torch.nn.functional.pad(flat, (0, 0, 0, most - len(flat)))
        found = self.others.gather(filled)  # [D, most, ...]
        rows = torch.cat([part[: len(domains)] for part, domains in zip(found, self.dealt, strict=True)])
        pieces = iter(torch.split(rows, [leaf[0].numel() for leaf in leaves], 1))
        return trees.map_leaves(lambda leaf: next(pieces).reshape(-1, *leaf.shape[1:]).to(leaf.dtype), tree)

    def collected(self, tree: Tree) -> Tree:
        """The rows of all domains on the host of the first process, leaf by leaf. Others get what they have."""
        rank, size = self.ranks.rank, self.mesh.samples

        def of_all(mine: Tensor) -> Tensor:
            if rank > 0:
                if rank % size == 0:  # one of each group
                    self.ranks.send(mine, 0)
                return mine
            whole = mine.new_empty((self.dealt[-1].stop, *mine.shape[1:]), device="cpu")
            whole[self.mine] = mine.cpu()
            for group, domains in enumerate(self.dealt[1:], 1):
                self.ranks.receive(whole[domains.start : domains.stop], group * size)
            return whole

        return trees.map_leaves(of_all, tree)

    def average_gradient(self, gradient: Params) -> Params:
        """Mean over all K domains: a weighted all-reduce, because processes may train different numbers of domains."""
        share = (self.mine.stop - self.mine.start) * self.mesh.domains / self.dealt[-1].stop
        return unflatten(self.others.mean(share * flat_vector(gradient)), gradient)

    def gather(self, trajectories: Params, centre: Params | None = None) -> Slice:
        """This process's slice of all K trajectories; of the centre, which every process has, nothing is sent."""
        whole = flatten(trajectories, leading=1)
        size = whole.flat.shape[1]
        going = [whole.flat[:, slice(*self._cut(size, rank))] for rank in self.addresses]
        start, stop = self._cut(size, self.ranks.rank)
        coming = self.others.exchanged(going, [(len(domains), stop - start) for domains in self.dealt])
        last = [] if centre is None else [flat_vector(centre)[None, start:stop]]
        return Slice(torch.cat([*coming, *last]), whole.layout, start, stop)

    def gramians(self, gathered: Slice, blocks: Blocks) -> Tensor:
        """The sum of everyone's, in the same order everywhere: the same bits."""
        mine = gramians(gathered.rows, gathered.segments(blocks), len(blocks))
        return self.ranks.everyone.gather(mine).sum(0)

    def weighted_sum(self, gathered: Slice, blocks: Blocks, weights: Tensor, sound: Tensor) -> Params:
        """Everyone's slice of the direction."""
        size = sum(gathered.layout.sizes)
        mine = gathered.rows.new_zeros(self._length(size))
        if gathered.start < gathered.stop:
            mine[: gathered.stop - gathered.start] = weighted_sum(
                gathered.rows, gathered.segments(blocks), weights, sound
            )
        return FlatParams(self.ranks.everyone.gather(mine).flatten()[:size], gathered.layout)

    def _length(self, size: int) -> int:
        """How many of so many weights a slice has; the last may have fewer."""
        return -(-size // self.ranks.world)

    def _cut(self, size: int, rank: int) -> tuple[int, int]:
        length = self._length(size)
        return min(rank * length, size), min((rank + 1) * length, size)


def _at_least_2d(leaf: Tensor) -> Tensor:
    return leaf[:, None] if leaf.ndim == 1 else leaf


class SampleParallel:
    """Samples over the processes of a group: each has its part of every minibatch, and all take the mean gradient."""

    def __init__(self, ranks: World, mesh: Mesh):
        self.count = mesh.samples
        self.number = ranks.rank % mesh.samples
        self.group: ProcessGroup = ranks.among(
            [[g * mesh.samples + s for s in range(mesh.samples)] for g in range(mesh.domains)]
        )

    def samples(self, batch_size: int) -> slice:
        """This process's samples of so many of every domain."""
        size = batch_size // self.count
        return slice(self.number * size, (self.number + 1) * size)

    def average_gradient(self, gradient: Gradient) -> Gradient:
        """The gradient over all samples, which is the mean of the parts': a risk is a mean over samples."""

        def of(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
            def over_all(params: Params) -> tuple[Params, Loss]:
                slopes, loss = gradient(objective)(params)
                mine = flat_vector(slopes)
                mean = self.group.mean(torch.cat([mine, loss.value.to(mine.dtype).reshape(1)]))
                return unflatten(mean[:-1], slopes), loss._replace(value=mean[-1])

            return over_all

        return of
