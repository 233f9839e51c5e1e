"""Gradients of the risk of each domain, and products with its Hessian, for methods that compare these gradients."""

from torch import Tensor
from torch.func import grad

from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params


def domain_gradients(state: State, batch: Batch, problem: Problem, key: Tensor) -> tuple[Params, Loss]:
    """Return g_k = ∇L_k of each domain, [K, ...], and the mean risk.

    Each domain has its own forward pass. K gradients of one joint pass would cost K times as much. Batch norm that is
    not frozen therefore normalises each domain separately; its new statistics are the mean over the K passes.
    """

    def domain_gradient(domain_batch: Batch, live: Params, key: Tensor) -> tuple[Params, Loss]:
        domain_state = state._replace(buffers=state.buffers | live, key=key)

        def objective(params: Params) -> Loss:
            model = problem.model(params, domain_state)
            return Loss(model.risks(domain_batch).mean(), buffers=problem.live_buffers(model))

        return problem.gradient(objective)(state.params)

    gradients, losses = problem.each_domain(domain_gradient, batch, *domain_inputs(state, problem, key))
    return gradients, Loss(losses.value.mean(), buffers=trees.mean(losses.buffers))


def hessian_products(state: State, batch: Batch, problem: Problem, vectors: Params, key: Tensor) -> Params:
    """Return H_k v_k of each domain, [K, ...]: the Hessian of L_k times a vector, as the gradient of ⟨∇L_k, v_k⟩.

    The graph of only one domain must be in memory. Random layers draw the same numbers as in `domain_gradients`.
    """

    def product(domain_batch: Batch, vector: Params, live: Params, key: Tensor) -> Params:
        domain_state = state._replace(buffers=state.buffers | live, key=key)

        def risk(params: Params) -> Tensor:
            return problem.model(params, domain_state).risks(domain_batch).mean()

        found, _ = problem.gradient(lambda params: Loss(trees.dot(grad(risk)(params), vector)))(state.params)
        return found

    products: Params = problem.each_domain(product, batch, vectors, *domain_inputs(state, problem, key))
    return products


def domain_inputs(state: State, problem: Problem, key: Tensor) -> tuple[Params, Tensor]:
    """Return K copies of the batch-norm statistics that training changes, and K keys for random layers."""
    live = trees.repeat(problem.live_buffers(state), problem.num_domains)
    return live, random.split(key, problem.num_domains)
