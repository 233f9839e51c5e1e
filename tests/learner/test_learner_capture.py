"""CUDA graphs of a Learner: how many there are, and their results. The graphs are replaced, so this needs no GPU."""

import pytest
import torch

from pogm import Batch
from pogm.core import trees
from pogm.core.state import State
from pogm.learner import capture
from pogm.learner.capture import GRAPHS, GraphedRounds


class EagerStep:
    """A step that writes to its own tensors, like a graph, but is computed again instead of being replayed."""

    def __init__(self, step):
        self.step, self.train_state = step, None

    def __call__(self, train_state, probing):
        if self.train_state is None:
            self.train_state = trees.map_leaves(torch.clone, train_state)
        after = self.step(train_state, probing, None)
        trees.map_leaves(lambda target, source: target.copy_(source), self.train_state, after)
        return self.train_state


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(capture, "GraphedStep", EagerStep)


def add_targets(state, memory, batches):
    total = state.memory["total"] + batches[0].y.sum()
    return state._replace(memory={"total": total}), {"0": memory["0"] + 1}, {"mean": batches[0].y.mean()}


def batch_of(size, value):
    return [Batch(torch.zeros(2, size, 3), torch.full((2, size), value))]


def start():
    one = torch.zeros(1)
    return State({"w": one}, {}, {"m": one}, {"total": torch.zeros(())}, torch.zeros(()), torch.zeros(()))


@pytest.mark.parametrize("shapes", [1, GRAPHS, GRAPHS + 2])
def test_minibatches_of_further_shapes_run_without_a_graph_and_give_the_same_results(shapes):
    rounds, state, memory, found = GraphedRounds(), start(), {"0": torch.zeros(())}, []
    values = [(1 + n % shapes, float(n)) for n in range(3 * shapes)]
    for size, value in values:
        state, memory, metrics = rounds.run(add_targets, "training", state, memory, batch_of(size, value))
        found.append(metrics["mean"])
    assert len(rounds.graphs) == min(shapes, GRAPHS)
    assert state.memory["total"] == sum(2 * size * value for size, value in values)
    assert memory["0"] == len(values)
    assert [one.item() for one in found] == [value for _, value in values], "later rounds do not change these metrics"


def test_each_condition_has_a_graph():
    rounds, state, memory = GraphedRounds(), start(), {"0": torch.zeros(())}
    for condition in ("training", "evaluation", "training"):
        state, memory, _ = rounds.run(add_targets, condition, state, memory, batch_of(4, 1.0))
    assert len(rounds.graphs) == 2
