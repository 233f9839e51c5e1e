"""Where the trajectories of all domains meet: their inner products, and a weighted sum of them.

This is all that a round needs of them, and all that changes when they are kept elsewhere or trained by others.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pogm.core.compilation import compiled, known_true
from pogm.core.flat_params import FlatParams, Layout, Params, flat_vector, flatten

Blocks = tuple[tuple[str, ...], ...]  # names of weights; each name is in one of them
Segments = tuple[tuple[int, int, int], ...]  # start, stop and block of neighbouring weights, in order

CHUNK = 2**20  # weights that are widened to float64, or fetched from the host, at a time
PAIRS = 8  # up to this many domains, compiled inner products are K(K+1)/2 sums in one pass


class TrajectoryReduce(Protocol):
    """Who has which domains' rows of a tree [K, ...], and how all trajectories come together."""

    def local_rows(self, tree: Any) -> Any:
        """The rows of the domains that are trained here, out of those of all."""

    def all_gather(self, tree: Any) -> Any:
        """The rows of all domains, from everybody's own. For small trees."""

    def average_gradient(self, gradient: Params) -> Params:
        """Mean over all K domains, given the mean over the domains that are trained in this process."""

    def gather(self, trajectories: Params, centre: Params | None = None) -> Any:
        """Collect the trajectories of all K domains: [K, ...], or a slice of the weights of each.

        Args:
            trajectories: Trajectories of the domains that are trained in this process.
            centre: One more trajectory, of a copy that every process has. It becomes the last row.
        """

    def gramians(self, gathered: Any, blocks: Blocks) -> Tensor:
        """The inner products h_i·h_j over each block's weights: [blocks, N, N] in float64, N rows with the centre."""

    def weighted_sum(self, gathered: Any, blocks: Blocks, weights: Tensor, sound: Tensor) -> Params:
        """d = Σ_i c_i h_i with weights [blocks, N], over the trajectories that are sound."""


class GatheredTrajectories(NamedTuple):
    """The trajectories of all domains in one process, and the centre if there is one."""

    rows: FlatParams  # [K, P]; possibly on the host
    centre: Tensor | None  # [P], on the device that computes


@dataclass(frozen=True)
class Local:
    """All domains are trained here. Trajectories kept in another type, or on the host, are fetched in parts."""

    device: torch.device | None = None  # where to compute; None is where they are
    dtype: torch.dtype | None = None  # of the direction; None is theirs

    def local_rows(self, tree: Any) -> Any:
        """All of them."""
        return tree

    def all_gather(self, tree: Any) -> Any:
        """All of them."""
        return tree

    def average_gradient(self, gradient: Params) -> Params:
        """The gradient itself: all domains are trained here."""
        return gradient

    def gather(self, trajectories: Params, centre: Params | None = None) -> GatheredTrajectories:
        """All of them, as the rows of one matrix; the centre stays a vector of its own, which saves a copy."""
        under_way = self.device is not None and self.device.type == "cuda"  # copies that none may read yet
        assert isinstance(trajectories, FlatParams) or not under_way
        return GatheredTrajectories(flatten(trajectories, leading=1), None if centre is None else flat_vector(centre))

    def gramians(self, gathered: GatheredTrajectories, blocks: Blocks) -> Tensor:
        """In float64, some weights at a time."""
        rows, where = gathered.rows.flat, segments(gathered.rows.layout, blocks)
        if self.device is None:
            return gramians(rows, where, len(blocks), gathered.centre)
        return _gramians(rows, where, len(blocks), self.device, gathered.centre)

    def weighted_sum(self, gathered: GatheredTrajectories, blocks: Blocks, weights: Tensor, sound: Tensor) -> Params:
        """In the type of the direction, some weights at a time."""
        (packed_rows, centre), where = gathered, segments(gathered.rows.layout, blocks)
        rows = packed_rows.flat
        if self.device is None:
            return packed_rows.like(weighted_sum(rows, where, weights, sound, self.dtype, centre))
        dtype = self.dtype or rows.dtype
        return packed_rows.like(_weighted_sum(rows, where, weights, sound, self.device, dtype, centre))


@functools.lru_cache
def segments(layout: Layout, blocks: Blocks) -> Segments:
    """The stretches of a packed tensor that belong to one block each."""
    block_of = {name: number for number, names in enumerate(blocks) for name in names}
    found: list[tuple[int, int, int]] = []
    stop = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        start, stop = stop, stop + size
        if found and found[-1][2] == block_of[name]:
            start = found.pop()[0]
        found.append((start, stop, block_of[name]))
    return tuple(found)


def within(stretches: Segments, start: int, stop: int) -> Segments:
    """What lies between two places, counted from the first of them."""
    cut = [(max(a, start) - start, min(b, stop) - start, block) for a, b, block in stretches]
    return tuple((a, b, block) for a, b, block in cut if a < b)


@compiled
def gramians(rows: Tensor, stretches: Segments, count: int, centre: Tensor | None = None) -> Tensor:
    """The inner products of rows [K, P], block by block: [count, N, N] in float64; zeros where a block is empty.

    A centre [P] is one more row, the last: N = K + 1.
    """
    return _gramians(rows, stretches, count, rows.device, centre)


def _gramians(
    rows: Tensor, stretches: Segments, count: int, device: torch.device, centre: Tensor | None = None
) -> Tensor:
    size = rows.shape[0] + (centre is not None)
    totals: list[Tensor] = [rows.new_zeros((size, size), dtype=torch.float64, device=device)] * count
    for start, stop, block in stretches:
        totals[block] = totals[block] + _products(rows[:, start:stop], device, _cut(centre, start, stop))
    return torch.stack(totals)


def _products(rows: Tensor, device: torch.device, centre: Tensor | None) -> Tensor:
    size = rows.shape[0] + (centre is not None)
    if torch.compiler.is_compiling() and rows.shape[0] <= PAIRS:
        every = [*rows.unbind(), *([] if centre is None else [centre])]
        wide = [row.to(torch.float64) for row in every]
        sums = {(i, j): (wide[i] * wide[j]).sum() for i in range(size) for j in range(i + 1)}
        return torch.stack([sums[max(i, j), min(i, j)] for i in range(size) for j in range(size)]).view(size, size)
    parts = ([some.to(torch.float64) for some in part] for part in _parts(rows, CHUNK, device, centre))
    wides = (torch.cat(part) if len(part) > 1 else part[0] for part in parts)
    total: Tensor = functools.reduce(torch.add, (wide @ wide.mT for wide in wides))
    return total


@compiled
def weighted_sum(
    rows: Tensor,
    stretches: Segments,
    weights: Tensor,
    sound: Tensor,
    dtype: torch.dtype | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    """Σ_i c_i h_i for rows h [K, P] and weights c [blocks, N]: [P]. Rows that are not sound count as zero.

    A centre [P] is one more row, the last: N = K + 1.
    """
    return _weighted_sum(rows, stretches, weights, sound, rows.device, dtype or rows.dtype, centre)


def _weighted_sum(
    rows: Tensor,
    stretches: Segments,
    weights: Tensor,
    sound: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    centre: Tensor | None = None,
) -> Tensor:
    size = rows.shape[1] if torch.compiler.is_compiling() else CHUNK
    all_sound, sums = known_true(sound), []
    for start, stop, block in stretches:
        factors = torch.where(sound, weights[block], 0).to(dtype)
        for part in _parts(rows[:, start:stop], size, device, _cut(centre, start, stop)):
            every = [row.to(dtype) for group in part for row in group.unbind()]
            here = (
                every if all_sound else [torch.where(ok, row, 0) for ok, row in zip(sound.unbind(), every, strict=True)]
            )
            total = factors[0] * here[0]
            for factor, row in zip(factors[1:].unbind(), here[1:], strict=True):
                total = total + factor * row
            sums.append(total)
    return torch.cat(sums) if len(sums) > 1 else sums[0]


def _cut(vector: Tensor | None, start: int, stop: int) -> Tensor | None:
    return None if vector is None else vector[start:stop]


def _parts(rows: Tensor, size: int, device: torch.device, centre: Tensor | None) -> Iterator[tuple[Tensor, ...]]:
    """Some weights of all rows at a time, [K, size] on the device; with a centre, those of the centre too, [1, size].

    Rows on the host are copied one part ahead of the arithmetic. A part is valid until the next one is requested.
    """
    parts = torch.split(rows, size, 1)
    centres = [()] * len(parts) if centre is None else [(part[None],) for part in torch.split(centre, size)]
    if rows.device.type == device.type:
        yield from ((part, *more) for part, more in zip(parts, centres, strict=True))
        return
    here, side = torch.cuda.current_stream(device), _side(device)
    buffers = [torch.empty(parts[0].shape, dtype=rows.dtype, device=device) for _ in parts[:2]]
    free = [here.record_event() for _ in buffers]  # also when the host's rows have been written
    for number, (part, more) in enumerate(zip(parts, centres, strict=True)):
        turn = number % 2
        buffer = buffers[turn][:, : part.shape[1]]
        side.wait_event(free[turn])
        with torch.cuda.stream(side):
            for row, source in zip(buffer, part, strict=True):  # a row is one piece of the host's memory
                row.copy_(source, non_blocking=True)
        here.wait_stream(side)
        yield (buffer, *more)
        free[turn] = here.record_event()


@functools.cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """What copies from the host to a device, beside its arithmetic."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
