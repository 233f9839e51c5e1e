"""CUDA graphs of a Learner: a round is recorded with the first minibatches of a shape, and replayed afterwards."""

from collections.abc import Callable, Hashable

import torch

from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.state import Metrics, State
from pogm.core.trees import Tree
from pogm.engine.capture import GraphedStep
from pogm.engine.vectorise import TrainState

GRAPHS = 4  # of a Learner; minibatches of other shapes run without a graph

Memory = dict[str, Tree]  # of each modifier, by its index
Round = Callable[[State, Memory, list[Batch]], tuple[State, Memory, Metrics]]


class GraphedRounds:
    """Rounds of a Learner as CUDA graphs, one graph for each shape of minibatches and each condition."""

    def __init__(self) -> None:
        self.graphs: dict[Hashable, GraphedStep] = {}  # by (shapes and types of the minibatches, condition)

    def run(
        self, run_round: Round, condition: Hashable, state: State, memory: Memory, batches: list[Batch]
    ) -> tuple[State, Memory, Metrics]:
        """Run one round as a CUDA graph, or without one if there are already as many as allowed.

        Args:
            run_round: The round, which a new graph records.
            condition: Everything else that decides what the round computes: modes of the layers, phase of the method.
            state: State before the round.
            memory: Memory of the modifiers before the round.
            batches: Minibatches of the round.
        """
        shapes = tuple((name, leaf.shape, leaf.dtype) for name, leaf in trees.named_leaves(batches))
        signature = (shapes, condition)
        if signature not in self.graphs:
            if len(self.graphs) == GRAPHS:
                return run_round(state, memory, batches)
            self.graphs[signature] = _record(run_round, state, memory, batches)
        graphed = self.graphs[signature]
        assert graphed.train_state is not None
        inputs: Tree = graphed.train_state.probe["batches"]
        trees.map_leaves(lambda target, source: target.copy_(source), inputs, batches)
        after = graphed(graphed.train_state._replace(state=state, modifiers=memory), False)
        metrics = trees.map_leaves(torch.clone, after.probe["metrics"])
        return after.state, after.modifiers, metrics


def _record(run_round: Round, state: State, memory: Memory, batches: list[Batch]) -> GraphedStep:
    """Return a recorded round. Its train state has the minibatches and the metrics in the place of the probe."""
    _, _, metrics = run_round(state, memory, batches)

    def step(train_state: TrainState, probing: bool, phase: int | None) -> TrainState:
        inputs = train_state.probe["batches"]
        state, memory, metrics = run_round(train_state.state, train_state.modifiers, inputs)
        return TrainState(state, memory, {"batches": inputs, "metrics": metrics}, {})

    graphed = GraphedStep(step)
    zeros = trees.map_leaves(torch.zeros_like, metrics)
    graphed(TrainState(state, memory, {"batches": batches, "metrics": zeros}, {}), False)
    return graphed
