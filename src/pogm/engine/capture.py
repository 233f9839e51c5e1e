"""A step recorded as a CUDA graph, and replayed without the host."""

from functools import cache

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.trees import Tree
from pogm.engine.vectorise import Step, TrainState


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
        self.train_state: TrainState | None = None

    def __call__(self, train_state: TrainState, probing: bool) -> TrainState:
        """Replay on this object's own copy of the progress, which is copied in only when it is another one."""
        if self.train_state is None:
            self._prepare(train_state)
        if train_state is not self.train_state:
            self._load(train_state)
        if probing not in self.graphs:
            self._record(probing)
        self.graphs[probing].replay()
        assert self.train_state is not None
        return self.train_state

    def _prepare(self, train_state: TrainState) -> None:
        """A first step, thrown away, tells which metrics there are."""
        totals = self.step(train_state._replace(totals={}), True).totals
        zeros = trees.map_leaves(torch.zeros_like, totals)
        self.train_state = trees.map_numbers(torch.clone, train_state._replace(totals=zeros))

    def _load(self, train_state: TrainState) -> None:
        assert self.train_state is not None
        for name, sums in self.train_state.totals.items():
            for kind, total in sums.items():
                known = train_state.totals.get(name)
                total.copy_(known[kind]) if known else total.zero_()
        for mine, theirs in (
            (self.train_state.state, train_state.state),
            (self.train_state.modifiers, train_state.modifiers),
            (self.train_state.probe, train_state.probe),
        ):
            _copy(mine, theirs)

    def _record(self, probing: bool) -> None:
        assert self.train_state is not None
        side = _side(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose their kernels before they are recorded
                self.step(self.train_state, probing)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after = self.step(self.train_state, probing)
            _copy(self.train_state, after)
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
