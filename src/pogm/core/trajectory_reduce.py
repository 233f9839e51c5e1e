"""Reduction of trajectories: inner products h_i·h_j of all domains, and a weighted sum of the h_i.

A round needs nothing else from the trajectories. `Local` reduces them in one process, also when they are in bf16 or on
the host; `pogm.distributed.domain_parallel` reduces them over several processes.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pogm.core.compilation import compiled, known_true
from pogm.core.flat_params import FlatParams, Layout, Params, flat_vector, flatten

Blocks = tuple[tuple[str, ...], ...]  # a partition of the parameter names
Segments = tuple[tuple[int, int, int], ...]  # (start, stop, block) of contiguous weights in the flat vector

CHUNK = 2**20  # weights converted to float64, or copied from the host, at a time
PAIRS = 8  # up to this many domains, compiled inner products are K(K+1)/2 sums in one kernel


class TrajectoryReduce(Protocol):
    """Interface of the reduction. Each process holds the rows of some domains of a tree [K, ...]."""

    def local_rows(self, tree: Any) -> Any:
        """Return the rows of the domains that this process trains."""

    def all_gather(self, tree: Any) -> Any:
        """Return the rows of all domains from the local rows of every process. For small trees."""

    def average_gradient(self, gradient: Params) -> Params:
        """Return the mean over all K domains, from the mean over the domains of this process."""

    def gather(self, trajectories: Params, centre: Params | None = None) -> Any:
        """Collect the trajectories of all K domains: [K, ...], or a slice of the weights of each.

        Args:
            trajectories: Trajectories of the domains of this process.
            centre: One more trajectory, equal on every process. It becomes the last row.
        """

    def gramians(self, gathered: Any, blocks: Blocks) -> Tensor:
        """Return the inner products h_i·h_j within each block: [blocks, N, N] in float64; N counts the centre."""

    def weighted_sum(self, gathered: Any, blocks: Blocks, weights: Tensor, finite: Tensor) -> Params:
        """Return d = Σ_i c_i h_i for weights c [blocks, N], over the rows that are finite."""


class GatheredTrajectories(NamedTuple):
    """Trajectories of all domains in one process, and the centre if there is one."""

    rows: FlatParams  # [K, P]; on the device or on the host
    centre: Tensor | None  # [P], on the device


@dataclass(frozen=True)
class Local:
    """Reduction in a single process. Trajectories in another dtype or on the host are read in chunks."""

    device: torch.device | None = None  # device of the computation; None: that of the trajectories
    dtype: torch.dtype | None = None  # dtype of the direction; None: that of the trajectories

    def local_rows(self, tree: Any) -> Any:
        """Return the tree: this process trains all domains."""
        return tree

    def all_gather(self, tree: Any) -> Any:
        """Return the tree: this process trains all domains."""
        return tree

    def average_gradient(self, gradient: Params) -> Params:
        """Return the gradient itself: this process trains all domains."""
        return gradient

    def gather(self, trajectories: Params, centre: Params | None = None) -> GatheredTrajectories:
        """Return the trajectories as rows of one matrix. The centre stays a separate vector, which saves a copy."""
        copying = self.device is not None and self.device.type == "cuda"  # asynchronous copies: must not be read yet
        assert isinstance(trajectories, FlatParams) or not copying
        return GatheredTrajectories(flatten(trajectories, leading=1), None if centre is None else flat_vector(centre))

    def gramians(self, gathered: GatheredTrajectories, blocks: Blocks) -> Tensor:
        """Return the inner products in float64, computed in chunks."""
        rows, where = gathered.rows.flat, segments(gathered.rows.layout, blocks)
        if self.device is None:
            return gramians(rows, where, len(blocks), gathered.centre)
        return _gramians(rows, where, len(blocks), self.device, gathered.centre)

    def weighted_sum(self, gathered: GatheredTrajectories, blocks: Blocks, weights: Tensor, finite: Tensor) -> Params:
        """Return the weighted sum in the dtype of the direction, computed in chunks."""
        (flat_rows, centre), where = gathered, segments(gathered.rows.layout, blocks)
        rows = flat_rows.flat
        if self.device is None:
            return flat_rows.like(weighted_sum(rows, where, weights, finite, self.dtype, centre))
        dtype = self.dtype or rows.dtype
        return flat_rows.like(_weighted_sum(rows, where, weights, finite, self.device, dtype, centre))


@functools.lru_cache
def segments(layout: Layout, blocks: Blocks) -> Segments:
    """Return the contiguous segments of the flat vector, each within one block."""
    block_of = {name: number for number, names in enumerate(blocks) for name in names}
    found: list[tuple[int, int, int]] = []
    stop = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        start, stop = stop, stop + size
        if found and found[-1][2] == block_of[name]:
            start = found.pop()[0]
        found.append((start, stop, block_of[name]))
    return tuple(found)


def within(spans: Segments, start: int, stop: int) -> Segments:
    """Return the parts of the segments within [start, stop), relative to start."""
    cut = [(max(a, start) - start, min(b, stop) - start, block) for a, b, block in spans]
    return tuple((a, b, block) for a, b, block in cut if a < b)


@compiled
def gramians(rows: Tensor, spans: Segments, count: int, centre: Tensor | None = None) -> Tensor:
    """Return the inner products of rows [K, P] for each block: [count, N, N] in float64; zeros for an empty block.

    A centre [P] is one more row, the last: N = K + 1.
    """
    return _gramians(rows, spans, count, rows.device, centre)


def _gramians(rows: Tensor, spans: Segments, count: int, device: torch.device, centre: Tensor | None = None) -> Tensor:
    size = rows.shape[0] + (centre is not None)
    totals: list[Tensor] = [rows.new_zeros((size, size), dtype=torch.float64, device=device)] * count
    for start, stop, block in spans:
        totals[block] = totals[block] + _products(rows[:, start:stop], device, _cut(centre, start, stop))
    return torch.stack(totals)


def _products(rows: Tensor, device: torch.device, centre: Tensor | None) -> Tensor:
    size = rows.shape[0] + (centre is not None)
    if torch.compiler.is_compiling() and rows.shape[0] <= PAIRS:
        every = [*rows.unbind(), *([] if centre is None else [centre])]
        wide = [row.to(torch.float64) for row in every]
        sums = {(i, j): (wide[i] * wide[j]).sum() for i in range(size) for j in range(i + 1)}
        return torch.stack([sums[max(i, j), min(i, j)] for i in range(size) for j in range(size)]).view(size, size)
    parts = ([some.to(torch.float64) for some in part] for part in _chunks(rows, CHUNK, device, centre))
    wides = (torch.cat(part) if len(part) > 1 else part[0] for part in parts)
    total: Tensor = functools.reduce(torch.add, (wide @ wide.mT for wide in wides))
    return total


@compiled
def weighted_sum(
    rows: Tensor,
    spans: Segments,
    weights: Tensor,
    finite: Tensor,
    dtype: torch.dtype | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    """Return Σ_i c_i h_i for rows h [K, P] and weights c [blocks, N]: [P]. Rows that are not finite count as zero.

    A centre [P] is one more row, the last: N = K + 1.
    """
    return _weighted_sum(rows, spans, weights, finite, rows.device, dtype or rows.dtype, centre)


def _weighted_sum(
    rows: Tensor,
    spans: Segments,
    weights: Tensor,
    finite: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    centre: Tensor | None = None,
) -> Tensor:
    size = rows.shape[1] if torch.compiler.is_compiling() else CHUNK
    all_finite, sums = known_true(finite), []
    for start, stop, block in spans:
        factors = torch.where(finite, weights[block], 0).to(dtype)
        for part in _chunks(rows[:, start:stop], size, device, _cut(centre, start, stop)):
            every = [row.to(dtype) for group in part for row in group.unbind()]
            rows_used = (
                every
                if all_finite
                else [torch.where(ok, row, 0) for ok, row in zip(finite.unbind(), every, strict=True)]
            )
            total = factors[0] * rows_used[0]
            for factor, row in zip(factors[1:].unbind(), rows_used[1:], strict=True):
                total += factor * row
            sums.append(total)
    return torch.cat(sums) if len(sums) > 1 else sums[0]


def _cut(vector: Tensor | None, start: int, stop: int) -> Tensor | None:
    return None if vector is None else vector[start:stop]


def _chunks(rows: Tensor, size: int, device: torch.device, centre: Tensor | None) -> Iterator[tuple[Tensor, ...]]:
    """Yield chunks of all rows, [K, size] on the device; with a centre, also its chunk, [1, size].

    Rows on the host are copied one chunk ahead of the arithmetic. A chunk is valid until the next one is requested.
    """
    parts = torch.split(rows, size, 1)
    centres = [()] * len(parts) if centre is None else [(part[None],) for part in torch.split(centre, size)]
    if rows.device.type == device.type:
        yield from ((part, *more) for part, more in zip(parts, centres, strict=True))
        return
    main, side = torch.cuda.current_stream(device), _copy_stream(device)
    buffers = [torch.empty(parts[0].shape, dtype=rows.dtype, device=device) for _ in parts[:2]]
    free = [main.record_event() for _ in buffers]  # recorded after the rows on the host were written
    for number, (part, more) in enumerate(zip(parts, centres, strict=True)):
        turn = number % 2
        buffer = buffers[turn][:, : part.shape[1]]
        side.wait_event(free[turn])
        with torch.cuda.stream(side):
            for row, source in zip(buffer, part, strict=True):  # each row is contiguous in host memory
                row.copy_(source, non_blocking=True)
        main.wait_stream(side)
        yield (buffer, *more)
        free[turn] = main.record_event()


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that copies from the host to the device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
