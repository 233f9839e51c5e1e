"""The gradient of every domain's risk, for methods that compare or combine them."""

from torch import Tensor

from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


def domain_gradients(state: State, batch: Batch, problem: Problem, key: Tensor) -> tuple[Params, Loss]:
    """g_k = ∇L_k for each domain, [K, ...], and the mean risk.

    Each domain has a pass of its own, which costs K times less than K gradients of one pooled pass; live batch norm
    therefore sees one domain at a time, and its statistics become the mean of what the passes left.
    """

    def of_one(one: Batch, live: Params, key: Tensor) -> tuple[Params, Loss]:
        own = state._replace(buffers=state.buffers | live, key=key)

        def objective(params: Params) -> Loss:
            model = problem.model(params, own)
            return Loss(model.risks(one).mean(), buffers=problem.live_buffers(model))

        return problem.gradient(objective)(state.params)

    gradients, losses = problem.each_domain(of_one, batch, *pass_of_each(state, problem, key))
    return gradients, Loss(losses.value.mean(), buffers=trees.mean(losses.buffers))


def pass_of_each(state: State, problem: Problem, key: Tensor) -> tuple[Params, Tensor]:
    """What a pass of each domain starts from: the live statistics, and a key for its random layers, [K, ...]."""
    live = trees.repeat(problem.live_buffers(state), problem.num_domains)
    return live, random.split(key, problem.num_domains)
