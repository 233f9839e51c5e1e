"""Steps recorded as CUDA graphs, which replay without work on the host."""

from functools import cache

import torch
from torch import Tensor

from pogm.core import trees
from pogm.core.trees import Tree
from pogm.engine.vectorise import Step, TrainState


class GraphedStep:
    """A step that is recorded as a CUDA graph with the first call, and replayed afterwards.

    The object owns the graphs and all tensors that they read and write. Each phase of an algorithm has a graph for
    rounds that a probe measures, and one for all others.
    """

    def __init__(self, step: Step):
        self.step = step
        self.graphs: dict[tuple[bool, int | None], torch.cuda.CUDAGraph] = {}  # by (measured, phase)
        self.train_state: TrainState | None = None

    def __call__(self, train_state: TrainState, probing: bool, phase: int | None = None) -> TrainState:
        """Run one step on the object's tensors. Another state is copied into them first."""
        if self.train_state is None:
            self._allocate(train_state, phase)
        if train_state is not self.train_state:
            self._load(train_state)
        if (probing, phase) not in self.graphs:
            self._record(probing, phase)
        self.graphs[probing, phase].replay()
        assert self.train_state is not None
        return self.train_state

    def _allocate(self, train_state: TrainState, phase: int | None) -> None:
        """Allocate the tensors of the graphs. A discarded step shows the metrics, which are the same in all phases."""
        totals = self.step(train_state._replace(totals={}), True, phase).totals
        zeros = trees.map_leaves(torch.zeros_like, totals)
        self.train_state = trees.map_numbers(torch.clone, train_state._replace(totals=zeros))

    def _load(self, train_state: TrainState) -> None:
        """Copy a state into the tensors of the graphs. Metrics that it does not have start at zero."""
        assert self.train_state is not None
        for name, sums in self.train_state.totals.items():
            for kind, total in sums.items():
                known = train_state.totals.get(name)
                total.copy_(known[kind]) if known else total.zero_()
        for target, source in (
            (self.train_state.state, train_state.state),
            (self.train_state.modifiers, train_state.modifiers),
            (self.train_state.probe, train_state.probe),
        ):
            _copy(target, source)

    def _record(self, probing: bool, phase: int | None) -> None:
        assert self.train_state is not None
        side = _side_stream(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # warm-up: libraries choose their kernels before the recording
                self.step(self.train_state, probing, phase)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after = self.step(self.train_state, probing, phase)
            _copy(self.train_state, after)
        self.graphs[probing, phase] = graph


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return one warm-up stream for all graphs: libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _copy(target: Tree, source: Tree) -> None:
    """Copy the tensors of ``source`` into those of ``target``, with one kernel per dtype."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    owned = {_storage_address(leaf) for leaf in trees.storages(target)}

    def collect(a: Tensor, b: Tensor) -> Tensor:
        if a.data_ptr() != b.data_ptr():  # a source in the memory of another target is cloned before it is overwritten
            pairs.setdefault(a.dtype, []).append((a, b.clone() if _storage_address(b) in owned else b))
        return a

    trees.map_numbers(collect, target, source)
    for group in pairs.values():
        torch._foreach_copy_([a for a, _ in group], [b for _, b in group])


def _storage_address(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()
