"""Rounds on the toy problem with a probe, and reference copies that train on one domain."""

from functools import partial

import torch
from support import K, batches, toy
from torch import Tensor
from torch.func import grad

from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.state import State
from pogm.diagnostics import Probe
from pogm.diagnostics.measurements import Round
from pogm.diagnostics.probe import Rounds

OTHER = 1000  # seed of the first minibatches of a held-out domain


def watched(
    algorithm: Algorithm, probe: Probe, rounds: int = 1, capacity: int | None = None, **options: object
) -> tuple[Rounds, list[State]]:
    """Return the measurements of the probe, and the states before the first round and after each round."""
    state, problem = toy(algorithm, **options)
    memory = probe.start(algorithm, state, problem, 1, rounds if capacity is None else capacity)
    states, domains = [state], options.get("domains", K)
    for number in range(rounds):
        made = batches(algorithm.minibatches, domains=domains, seed=number)
        others = batches(algorithm.minibatches, domains=1, seed=OTHER + number) if probe.target else []
        with torch.no_grad():
            after, _ = algorithm.step(state, made, problem)
            memory = probe.update_snapshot(memory, state)
            if probe.measures(number + 1):
                memory = probe.measure(memory, Round(algorithm, problem, state, after, made, others))
        state = after
        states.append(state)
    return probe.read(memory["rounds"]), states


def flat(params: trees.Params, less: trees.Params | None = None) -> Tensor:
    """Return the weights that predict as one vector, or their difference from other weights."""
    names = [name for name in params if name.startswith(("features.", "head."))]
    return torch.cat([(params[n] if less is None else params[n] - less[n]).flatten() for n in names])


def alone(
    algorithm: Algorithm, states: list[State], domain: int, seed: int = 0, **options: object
) -> list[trees.Params]:
    """Return the weights of a copy after each round. It trains on one domain, with one Adam for all rounds."""
    _, problem = toy(algorithm, **options)
    inner, ends = problem.optimizer.init(states[0].params), []
    domains = 1 if seed else options.get("domains", K)

    def risk(params: trees.Params, state: State, batch: Batch) -> Tensor:
        return problem.model(params, state).losses(batch).mean()

    for number, state in enumerate(states[:-1]):
        params = state.params
        for batch in batches(algorithm.minibatches, domains=domains, seed=seed + number):
            part = Batch(batch.x[domain : domain + 1], batch.y[domain : domain + 1])
            gradient = grad(partial(risk, state=state, batch=part))(params)
            params, inner = problem.optimizer.update(params, gradient, inner)
        ends.append(params)
    return ends
