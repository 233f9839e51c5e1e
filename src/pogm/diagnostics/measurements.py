"""Measurements of one round, and the buffer that keeps them on the device until the next evaluation.

Round r takes the weights from θ⁻ to θ⁺, a step h = θ⁺ − θ⁻. The copy of domain i ends at θ_i, with the trajectory
h_i = θ_i − θ⁻. Only weights that predict are measured: those of the featurizer and the head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.copies import Copies
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.model import evaluation_mode
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Params
from pogm.pareto import gramian

Buffer = dict[str, Tensor]  # "count", and each measurement as [capacity, ...]


class Round(NamedTuple):
    """One round of a run: the inputs of the step, and the state after it."""

    algorithm: Algorithm
    problem: Problem
    before: State
    after: State
    batches: list[Batch]  # [K, B, ...] each
    held_out: list[Batch]  # [T, B, ...] each; empty unless the probe measures held-out domains


def predicting_weights(params: Params) -> Params:
    """Return the weights of the featurizer and the head, without discriminators and parts that modifiers added."""
    return {name: leaf for name, leaf in params.items() if name.startswith(("features.", "head."))}


def inner_products(step: Params, trajectories: list[Params]) -> Tensor:
    """Return the Gramian of h, h_1, …, h_K and the trajectories of held-out domains, with h in the first row."""
    return gramian({name: torch.cat([leaf[None], *(t[name] for t in trajectories)]) for name, leaf in step.items()})


def distances(step: Params, trajectories: Params) -> tuple[Tensor, Tensor]:
    """Return ‖θ_i − θ⁺‖², and the sum over weight tensors of ‖θ_i − θ⁺‖ as in the authors' code: [K] each."""
    rows = [(trajectories[name] - leaf).flatten(1).double() for name, leaf in step.items()]  # θ_i − θ⁺ = h_i − h
    squares = torch.stack([row.square().sum(1) for row in rows])  # [tensors, K]
    return squares.sum(0), squares.sqrt().sum(0)


def divergences(copies: Copies, measured: Round) -> Tensor:
    """Return KL[p_i(y|x) ‖ p_j(y|x)] for all pairs of domains: [K, K]. Theorem 3 contains this term.

    x is the last minibatch of domain i, and p_i the prediction of the copy θ_i.
    """
    problem, before, algorithm = measured.problem, measured.before, measured.algorithm
    images = measured.batches[-1].x  # [K, B, ...]
    size = algorithm.prediction_batch_size

    def log_probabilities(_: list[Batch], trajectory: Params, live: Params) -> Tensor:
        state = before._replace(buffers=before.buffers | live)
        model = problem.model(trees.add(before.params, trajectory), state)  # θ_j
        parts = [x.split(size) if size else [x] for x in images]
        logits = [torch.cat([algorithm.predict(model, part) for part in x]) for x in parts]
        return torch.stack(logits).double().log_softmax(-1)  # [K, B, C]

    with evaluation_mode(problem.network):  # logs: [copy, domain, B, C]
        logs = problem.each_domain(log_probabilities, measured.batches, copies.trajectories, copies.buffers)
    own = torch.stack([logs[i, i] for i in range(len(images))])  # log p_i on domain i
    divergence: Tensor = (own.exp() * (own - logs)).sum(-1).mean(-1)  # [copy j, domain i]
    return divergence.T


# The invariant cosine ("invariant gradient angle" in the paper) is cos(θ^(r) − θ^(r−1), θ^(r) − θ^(r−τ)): the cosine
# between the last step and the last τ steps together. It is large if the path of the weights fluctuates little. The
# history holds the weights of past rounds, the oldest first.


def start_history(params: Params, length: int) -> Params:
    """Return the history before the first round, which repeats θ^(0)."""
    return trees.repeat(params, length)  # type: ignore[no-any-return]


def append_to_history(history: Params, params: Params) -> Params:
    """Append the weights of a round, and drop the oldest ones."""
    return {name: torch.cat([leaf[1:], params[name][None]]) for name, leaf in history.items()}


def replace_history(history: Params, params: Params, condition: Tensor) -> Params:
    """Replace a history of length 1 by these weights if the condition holds, as the authors' code does."""
    snapshot = {name: leaf[None] for name, leaf in params.items()}
    return trees.where(condition, snapshot, history)  # type: ignore[no-any-return]


def lagged_products(history: Params, params: Params, step: Params) -> Tensor:
    """Return h·(θ^(r) − θ^(r−τ)) and ‖θ^(r) − θ^(r−τ)‖²: [2]."""
    path = trees.subtract(params, trees.index(history, 0))
    return torch.stack([trees.dot(step, path), trees.dot(path, path)])


def start_buffer(values: dict[str, Tensor], capacity: int) -> Buffer:
    """Return an empty buffer for ``capacity`` rounds of measurements with the shapes of ``values``."""
    rows = {name: value.new_zeros((max(capacity, 1), *value.shape)) for name, value in values.items()}
    return {"count": torch.zeros_like(values["round"]), **rows}


def append_to_buffer(buffer: Buffer, values: dict[str, Tensor]) -> Buffer:
    """Append the measurements of one round. If the buffer is full, only the count changes."""
    rows = {name: leaf for name, leaf in buffer.items() if name != "count"}
    is_next = torch.arange(len(rows["round"]), device=buffer["count"].device) == buffer["count"]
    written = trees.where(is_next, {name: values[name].expand_as(leaf) for name, leaf in rows.items()}, rows)
    return {"count": buffer["count"] + 1, **written}


def clear_buffer(buffer: Buffer) -> Buffer:
    """Return the buffer with a count of 0."""
    return buffer | {"count": torch.zeros_like(buffer["count"])}


def read_buffer(buffer: Buffer) -> dict[str, Tensor]:
    """Return the measured rounds of one trial. The buffer must be on the host."""
    return {name: leaf[: int(buffer["count"])] for name, leaf in buffer.items() if name != "count"}
