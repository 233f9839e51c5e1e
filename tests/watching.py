"""A few rounds on the toy problem under a probe, and what domains alone would do in them, by hand."""

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

OTHER = 1000  # the seed of a held-out domain's first minibatches


def watched(
    algorithm: Algorithm, probe: Probe, rounds: int = 1, capacity: int | None = None, **options: object
) -> tuple[Rounds, list[State]]:
    """What the probe measured, and the state before the first round and after each."""
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
    """The weights that predict, as one vector; or how far they are from others."""
    names = [name for name in params if name.startswith(("features.", "head."))]
    return torch.cat([(params[n] if less is None else params[n] - less[n]).flatten() for n in names])


def alone(
    algorithm: Algorithm, states: list[State], domain: int, seed: int = 0, **options: object
) -> list[trees.Params]:
    """Where each round's minibatches of one domain would take the weights; one Adam from the first to the last."""
    _, problem = toy(algorithm, **options)
    inner, ends = problem.optimizer.init(states[0].params), []
    domains = 1 if seed else options.get("domains", K)

    def risk(params: trees.Params, state: State, batch: Batch) -> Tensor:
        return problem.model(params, state).losses(batch).mean()

    for number, state in enumerate(states[:-1]):
        params = state.params
        for batch in batches(algorithm.minibatches, domains=domains, seed=seed + number):
            own = Batch(batch.x[domain : domain + 1], batch.y[domain : domain + 1])
            slope = grad(partial(risk, state=state, batch=own))(params)
            params, inner = problem.optimizer.update(params, slope, inner)
        ends.append(params)
    return ends
