"""A step recorded as a CUDA graph, and replayed without the host."""

from functools import cache

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.trees import Tree
from pogm.engine.vectorise import Progress, Step


@cache
def _side(device: int) -> torch.cuda.Stream:
    """One stream to warm up on, for all graphs: libraries keep workspaces for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Captured:
    """A step as a CUDA graph: recorded once, then replayed without the host.

    The graph and every tensor it touches live as long as this object.
    """

    def __init__(self, step: Step):
        self.step = step
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.progress: Progress | None = None

    def __call__(self, progress: Progress, probing: bool) -> Progress:
        """Replay on this object's own copy of the progress, which is copied in only when it is another one."""
        if self.progress is None:
            self._prepare(progress)
        if progress is not self.progress:
            self._load(progress)
        if probing not in self.graphs:
            self._record(probing)
        self.graphs[probing].replay()
        assert self.progress is not None
        return self.progress

    def _prepare(self, progress: Progress) -> None:
        """A first step, thrown away, tells which metrics there are."""
        totals = self.step(progress._replace(totals={}), True).totals
        zeros = trees.map_leaves(torch.zeros_like, totals)
        self.progress = trees.map_numbers(torch.clone, progress._replace(totals=zeros))

    def _load(self, progress: Progress) -> None:
        assert self.progress is not None
        for name, sums in self.progress.totals.items():
            for kind, total in sums.items():
                known = progress.totals.get(name)
                total.copy_(known[kind]) if known else total.zero_()
        for mine, theirs in (
            (self.progress.state, progress.state),
            (self.progress.modifiers, progress.modifiers),
            (self.progress.probe, progress.probe),
        ):
            _copy(mine, theirs)

    def _record(self, probing: bool) -> None:
        assert self.progress is not None
        side = _side(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose their kernels before they are recorded
                self.step(self.progress, probing)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after = self.step(self.progress, probing)
            _copy(self.progress, after)
        self.graphs[probing] = graph


def _copy(mine: Tree, theirs: Tree) -> None:
    """Copy numbers into this object's own tensors, but for those that are there already."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # those of one type are copied at once
    own = {_memory(leaf) for leaf in trees.storages(mine)}

    def collected(a: Tensor, b: Tensor) -> Tensor:
        if a.data_ptr() != b.data_ptr():  # and what lies in another of our own might be overwritten first
            pairs.setdefault(a.dtype, []).append((a, b.clone() if _memory(b) in own else b))
        return a

    trees.map_numbers(collected, mine, theirs)
    for alike in pairs.values():
        torch._foreach_copy_([a for a, _ in alike], [b for _, b in alike])


def _memory(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()
