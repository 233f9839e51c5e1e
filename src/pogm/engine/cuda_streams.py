"""Independent pieces of work side by side on a GPU, each on a stream of its own.

A network for small images leaves most of a GPU idle; so do copies of it, or trials, one after the other.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

from pogm.core import trees
from pogm.core.trees import Tree

Result = TypeVar("Result")


@cache
def _stream(device: int, number: int) -> torch.cuda.Stream:
    """Few streams, used again and again: libraries keep workspaces for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def side_by_side(pieces: Sequence[Callable[[], Result]]) -> list[Result]:
    """Every piece's result. They begin after what was asked of the GPU before, and what comes next waits for all of
    them: so memory of a stream is not used again before all who read it are done.
    """
    here = torch.cuda.current_stream()
    streams = [_stream(torch.cuda.current_device(), number) for number in range(len(pieces))]
    results = []
    for stream, piece in zip(streams, pieces, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results.append(piece())
    for stream in streams:
        here.wait_stream(stream)
    return results


def in_streams(function: Callable[..., Tree], batches: Tree, *others: Tree) -> Tree:
    """Domains side by side: the activations of all of them are in memory."""

    def of_one(k: int) -> Callable[[], Tree]:
        one = trees.map_leaves(lambda leaf: leaf[k : k + 1], batches)
        return lambda: function(one, *(trees.index(other, k) for other in others))

    return trees.stack(side_by_side([of_one(k) for k in range(trees.leading(batches))]))
