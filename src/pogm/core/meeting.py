"""Where the trajectories of all domains meet: their inner products, and a weighted sum of them.

This is all that a round needs of them, and all that changes when they are kept elsewhere or trained by others.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pogm.core.fuse import fused, known_true
from pogm.core.packed import Layout, Packed, Params, packed

Blocks = tuple[tuple[str, ...], ...]  # names of weights; each name is in one of them
Segments = tuple[tuple[int, int, int], ...]  # start, stop and block of neighbouring weights, in order

CHUNK = 2**20  # weights that are widened to float64, or fetched from the host, at a time
PAIRS = 8  # up to this many domains, compiled inner products are K(K+1)/2 sums in one pass


class Meeting(Protocol):
    """Who has which domains' rows of a tree [K, ...], and how all trajectories come together."""

    def own(self, tree: Any) -> Any:
        """The rows of the domains that are trained here, out of those of all."""

    def everyones(self, tree: Any) -> Any:
        """The rows of all domains, from everybody's own. For small trees."""

    def gathered(self, trajectories: Params) -> Any:
        """From the own domains' trajectories to all K of them: [K, ...], or a part of the weights of each."""

    def gramians(self, gathered: Any, blocks: Blocks) -> Tensor:
        """The inner products h_i·h_j over each block's weights: [blocks, K, K] in float64."""

    def combined(self, gathered: Any, blocks: Blocks, weights: Tensor, sound: Tensor) -> Params:
        """d = Σ_i c_i h_i with weights [blocks, K], over the trajectories that are sound."""


@dataclass(frozen=True)
class Here:
    """All domains are trained here. Trajectories kept in another type, or on the host, are fetched in parts."""

    device: torch.device | None = None  # where to compute; None is where they are
    dtype: torch.dtype | None = None  # of the direction; None is theirs

    def own(self, tree: Any) -> Any:
        """All of them."""
        return tree

    def everyones(self, tree: Any) -> Any:
        """All of them."""
        return tree

    def gathered(self, trajectories: Params) -> Packed:
        """All of them, as the rows of one matrix."""
        under_way = self.device is not None and self.device.type == "cuda"  # copies that none may read yet
        assert isinstance(trajectories, Packed) or not under_way
        return packed(trajectories, leading=1)

    def gramians(self, gathered: Packed, blocks: Blocks) -> Tensor:
        """In float64, some weights at a time."""
        rows, where = gathered.flat, segments(gathered.layout, blocks)
        if self.device is None:
            return gramians(rows, where, len(blocks))
        return _gramians(rows, where, len(blocks), self.device)

    def combined(self, gathered: Packed, blocks: Blocks, weights: Tensor, sound: Tensor) -> Params:
        """In the type of the direction, some weights at a time."""
        rows, where = gathered.flat, segments(gathered.layout, blocks)
        if self.device is None:
            return gathered.like(combined(rows, where, weights, sound, self.dtype))
        return gathered.like(_combined(rows, where, weights, sound, self.device, self.dtype or rows.dtype))


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


@fused
def gramians(rows: Tensor, stretches: Segments, count: int) -> Tensor:
    """The inner products of rows [K, P], block by block: [count, K, K] in float64; zeros where a block is empty."""
    return _gramians(rows, stretches, count, rows.device)


def _gramians(rows: Tensor, stretches: Segments, count: int, device: torch.device) -> Tensor:
    totals: list[Tensor] = [rows.new_zeros(2 * rows.shape[:1], dtype=torch.float64, device=device)] * count
    for start, stop, block in stretches:
        totals[block] = totals[block] + _products(rows[:, start:stop], device)
    return torch.stack(totals)


def _products(rows: Tensor, device: torch.device) -> Tensor:
    K = rows.shape[0]
    if torch.compiler.is_compiling() and K <= PAIRS:
        wide = rows.to(torch.float64)
        sums = {(i, j): (wide[i] * wide[j]).sum() for i in range(K) for j in range(i + 1)}
        return torch.stack([sums[max(i, j), min(i, j)] for i in range(K) for j in range(K)]).view(K, K)
    wides = (part.to(torch.float64) for part in _parts(rows, CHUNK, device))
    total: Tensor = functools.reduce(torch.add, (wide @ wide.mT for wide in wides))
    return total


@fused
def combined(
    rows: Tensor, stretches: Segments, weights: Tensor, sound: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Σ_i c_i h_i for rows h [K, P] and weights c [blocks, K]: [P]. Rows that are not sound count as zero."""
    return _combined(rows, stretches, weights, sound, rows.device, dtype or rows.dtype)


def _combined(
    rows: Tensor, stretches: Segments, weights: Tensor, sound: Tensor, device: torch.device, dtype: torch.dtype
) -> Tensor:
    size = rows.shape[1] if torch.compiler.is_compiling() else CHUNK
    all_sound, sums = known_true(sound), []
    for start, stop, block in stretches:
        factors = torch.where(sound, weights[block], 0).to(dtype)
        for part in _parts(rows[:, start:stop], size, device):
            here = part.to(dtype) if all_sound else torch.where(sound[:, None], part.to(dtype), 0)
            total = factors[0] * here[0]
            for factor, row in zip(factors[1:].unbind(), here[1:].unbind(), strict=True):
                total = total + factor * row
            sums.append(total)
    return torch.cat(sums) if len(sums) > 1 else sums[0]


def _parts(rows: Tensor, size: int, device: torch.device) -> Iterator[Tensor]:
    """So many weights of all rows at a time, on the device; what comes from the host is on its way one part ahead.

    A part is there until the next is asked for.
    """
    parts = torch.split(rows, size, 1)
    if rows.device.type == device.type:
        yield from parts
        return
    here, side = torch.cuda.current_stream(device), _side(device)
    buffers = [torch.empty(parts[0].shape, dtype=rows.dtype, device=device) for _ in parts[:2]]
    free = [here.record_event() for _ in buffers]  # also when the host's rows have been written
    for number, part in enumerate(parts):
        turn = number % 2
        buffer = buffers[turn][:, : part.shape[1]]
        side.wait_event(free[turn])
        with torch.cuda.stream(side):
            for row, source in zip(buffer, part, strict=True):  # a row is one piece of the host's memory
                row.copy_(source, non_blocking=True)
        here.wait_stream(side)
        yield buffer
        free[turn] = here.record_event()


@functools.cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """What copies from the host to a device, beside its arithmetic."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
