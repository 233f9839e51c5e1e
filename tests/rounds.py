"""One round of POGM, and the trajectories of its copies, computed naively."""

import torch
from support import K, batches, toy
from torch.func import grad

from pogm.core import trees
from pogm.core.batch import Batch


def one_round(pogm, **options):
    state, problem = toy(pogm, **options)
    domains = options.get("domains", K)
    after, metrics = pogm.step(state, batches(pogm.minibatches, domains=domains), problem)
    return state, after, metrics


def trajectories(pogm, **options):
    """Return the displacement of every domain after E steps on its minibatches, computed naively."""
    state, problem = toy(pogm, **options)
    made = batches(pogm.minibatches)
    rows = []
    for k in range(K):
        params, inner = state.params, problem.optimizer.init(state.params)
        for batch in made:
            x, y = batch.x[k], batch.y[k]
            slope = grad(lambda p, x=x, y=y: problem.model(p, state).losses(Batch(x[None], y[None])).mean())(params)
            params, inner = problem.optimizer.update(params, slope, inner)
        rows.append(trees.subtract(params, state.params))
    return trees.stack(rows)


def centre_of(pogm, rows):
    """Return h_0 [P], computed naively: the mean of the rows [K, P], or ERM's displacement on all domains."""
    if pogm.centre == "mean":
        return rows.mean(0)
    state, problem = toy(pogm)
    params, inner = state.params, problem.optimizer.init(state.params)
    for batch in batches(pogm.minibatches):
        slope = grad(lambda p, batch=batch: problem.model(p, state).losses(batch).mean())(params)
        params, inner = problem.optimizer.update(params, slope, inner)
    return torch.cat([(params[name] - leaf).flatten() for name, leaf in state.params.items()])
