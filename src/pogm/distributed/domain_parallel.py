"""Domain and sample parallelism. After every round, all processes have the same weights.

Each process gets a slice of the weights of all K trajectories. The Gramians of the slices add up to the Gramian of the
trajectories, so all processes solve the same K×K problem. Each then computes its slice of the direction.
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
from pogm.distributed.world import ProcessGroup, World

Gradient = Callable[[Objective], Callable[[Params], tuple[Params, Loss]]]


class Slice(NamedTuple):
    """Consecutive weights of all trajectories."""

    rows: Tensor  # [N, stop − start]: K trajectories, then the centre if there is one
    layout: Layout  # of all weights
    start: int
    stop: int

    def segments(self, blocks: Blocks) -> Segments:
        """Return the segments of the slice that belong to one block each."""
        return within(segments(self.layout, blocks), self.start, self.stop)


class DomainParallel:
    """Trajectory reduction over processes that each train some of the domains."""

    def __init__(self, world: World, mesh: Mesh, num_domains: int):
        self.world, self.mesh = world, mesh
        group, _ = mesh.coordinates(world.rank)
        self.partition = mesh.partition_domains(num_domains)  # domains of each group
        self.local_domains = slice(self.partition[group].start, self.partition[group].stop)
        # The processes of a group hold the same trajectories. Each exchanges slices with the processes that have the
        # same index in the other groups.
        self.peers: ProcessGroup = world.subgroup(
            [[g * mesh.samples + s for g in range(mesh.domains)] for s in range(mesh.samples)]
        )

    def local_rows(self, tree: Any) -> Any:
        """Select the rows of the domains that are trained in this process."""
        return trees.map_numbers(lambda leaf: leaf[self.local_domains], tree)

    def all_gather(self, tree: Any) -> Any:
        """Gather the rows of all domains, with one message for all leaves, in float64, which is exact."""
        leaves = trees.leaves(tree)
        most = max(map(len, self.partition))
        flat = torch.cat([leaf.flatten(1).double() for leaf in map(_at_least_2d, leaves)], 1)
        padded = torch.nn.functional.pad(flat, (0, 0, 0, most - len(flat)))
        gathered = self.peers.all_gather(padded)  # [D, most, ...]
        rows = torch.cat([part[: len(domains)] for part, domains in zip(gathered, self.partition, strict=True)])
        pieces = iter(torch.split(rows, [leaf[0].numel() for leaf in leaves], 1))
        return trees.map_leaves(lambda leaf: next(pieces).reshape(-1, *leaf.shape[1:]).to(leaf.dtype), tree)

    def gather_to_first(self, tree: Tree) -> Tree:
        """Gather the rows of all domains on the host of rank 0, leaf by leaf. Other ranks return their own rows."""
        rank, samples = self.world.rank, self.mesh.samples

        def gather_leaf(local: Tensor) -> Tensor:
            if rank > 0:
                if rank % samples == 0:  # the first process of each group sends
                    self.world.send(local, 0)
                return local
            rows = local.new_empty((self.partition[-1].stop, *local.shape[1:]), device="cpu")
            rows[self.local_domains] = local.cpu()
            for group, domains in enumerate(self.partition[1:], 1):
                self.world.receive(rows[domains.start : domains.stop], group * samples)
            return rows

        return trees.map_leaves(gather_leaf, tree)

    def average_gradient(self, gradient: Params) -> Params:
        """Return the mean over all K domains; weighted, because processes may train different numbers of domains."""
        share = (self.local_domains.stop - self.local_domains.start) * self.mesh.domains / self.partition[-1].stop
        return unflatten(self.peers.mean(share * flat_vector(gradient)), gradient)

    def gather(self, trajectories: Params, centre: Params | None = None) -> Slice:
        """Exchange trajectories: return this process's slice of all K. The centre is not sent: every process has it."""
        local = flatten(trajectories, leading=1)
        size = local.flat.shape[1]
        outgoing = [local.flat[:, slice(*self._bounds(size, rank))] for rank in self.peers.members]
        start, stop = self._bounds(size, self.world.rank)
        incoming = self.peers.all_to_all(outgoing, [(len(domains), stop - start) for domains in self.partition])
        last = [] if centre is None else [flat_vector(centre)[None, start:stop]]
        return Slice(torch.cat([*incoming, *last]), local.layout, start, stop)

    def gramians(self, gathered: Slice, blocks: Blocks) -> Tensor:
        """Sum the Gramians of all slices, in the same order in every process, so that all have the same bits."""
        local = gramians(gathered.rows, gathered.segments(blocks), len(blocks))
        return self.world.all_ranks.all_gather(local).sum(0)

    def weighted_sum(self, gathered: Slice, blocks: Blocks, weights: Tensor, finite: Tensor) -> Params:
        """Compute this process's slice of the direction, and gather the slices of all processes."""
        size = sum(gathered.layout.sizes)
        local = gathered.rows.new_zeros(self._slice_length(size))
        if gathered.start < gathered.stop:
            local[: gathered.stop - gathered.start] = weighted_sum(
                gathered.rows, gathered.segments(blocks), weights, finite
            )
        return FlatParams(self.world.all_ranks.all_gather(local).flatten()[:size], gathered.layout)

    def _slice_length(self, size: int) -> int:
        """Return the number of weights in a slice, out of ``size``. The last slices may be shorter."""
        return -(-size // self.world.size)

    def _bounds(self, size: int, rank: int) -> tuple[int, int]:
        """Return where the slice of a rank starts and stops."""
        length = self._slice_length(size)
        return min(rank * length, size), min((rank + 1) * length, size)


def _at_least_2d(leaf: Tensor) -> Tensor:
    return leaf[:, None] if leaf.ndim == 1 else leaf


class SampleParallel:
    """Sample parallelism in a group of processes: each trains on a part of every minibatch; gradients are averaged."""

    def __init__(self, world: World, mesh: Mesh):
        self.count = mesh.samples
        self.index = world.rank % mesh.samples
        self.group: ProcessGroup = world.subgroup(
            [[g * mesh.samples + s for s in range(mesh.samples)] for g in range(mesh.domains)]
        )

    def local_samples(self, batch_size: int) -> slice:
        """Return the samples of this process, out of ``batch_size`` samples of every domain."""
        size = batch_size // self.count
        return slice(self.index * size, (self.index + 1) * size)

    def average_gradient(self, gradient: Gradient) -> Gradient:
        """Return a gradient function that averages gradients and losses over the processes of the group.

        This is the gradient over all samples, because a risk is a mean over samples.
        """

        def average(objective: Objective) -> Callable[[Params], tuple[Params, Loss]]:
            def averaged_gradient(params: Params) -> tuple[Params, Loss]:
                local, loss = gradient(objective)(params)
                vector = flat_vector(local)
                mean = self.group.mean(torch.cat([vector, loss.value.to(vector.dtype).reshape(1)]))
                return unflatten(mean[:-1], local), loss._replace(value=mean[-1])

            return averaged_gradient

        return average
