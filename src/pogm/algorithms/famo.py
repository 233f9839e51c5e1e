"""FAMO: weights of the trajectories that decrease all losses at the same rate, learned from the losses alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pogm.algorithms.rounds import Direction, DomainRounds, weighted_direction
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.flat_params import flat_vector
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.optimizers import Adam
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params
from pogm.pareto.problem import Centre

EPSILON = 1e-8  # added to losses before the logarithm, as in the authors' code
MOMENTS = ("mean", "square", "count")  # state of the logits' Adam


@dataclass(frozen=True)
class FAMO(DomainRounds):
    r"""Fast adaptive multitask optimization (Liu et al., 2023): decrease the logarithms of all losses equally fast.

    .. math:: \theta' = \theta + \alpha \frac{\sum_i (z_i / \ell_i) h_i}{\sum_i z_i / \ell_i}, \qquad
        z = \operatorname{softmax}(\xi), \qquad
        \xi' = \operatorname{Adam}\Big(\xi, \sum_i [\log \ell_i(\theta) - \log \ell_i(\theta')] \nabla_\xi z_i\Big)

    The logits ξ are the memory of the method. A domain whose loss decreased more than that of the others gets less
    weight. The losses after the step, on the first minibatch of the round, take one further forward pass (two with
    E > 1). The paper takes one gradient of the weighted sum of losses, so it is cheaper than methods with one gradient
    per domain. This class combines trajectories, to compare with them; with one inner step of SGD it is the published
    method with SGD. The logits take steps of Adam with L2 weight decay γ, as in the authors' code; the paper writes
    gradient descent. The paper has γ = 1e-3, the code of its experiments 1e-5, and its example 1e-2; the ranges are our
    choice. The code also limits the norm of the combined gradient to 1; this class does not. Losses must be positive.

    Args:
        logit_lr: Learning rate β of the logits.
        logit_decay: Weight decay γ of the logits.
    """

    logit_lr: float = hyper(0.025, Choice(0.005, 0.025, 0.1), above=0, draw_as="famo_lr")  # β
    logit_decay: float = hyper(1e-3, Choice(1e-5, 1e-3, 1e-2), least=0, draw_as="famo_gamma")  # γ

    combine_gradients: ClassVar[None] = None  # type: ignore[assignment]  # it needs losses before and after the step

    @property
    def parallel_axes(self) -> tuple[str, ...]:
        """Domains can be divided among processes. Samples cannot: the losses are of whole minibatches."""
        return ("domains",)

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the first state, with logits of zero."""
        state = super().start(params, buffers, key, problem)
        logits = torch.zeros(problem.num_domains, dtype=flat_vector(params).dtype, device=key.device)
        moments = Adam(self.logit_lr).init({"logits": logits})
        return state._replace(memory=state.memory | {"logits": logits, "weights": logits + 1 / len(logits)} | moments)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Run one round with the current weights of the domains, then update the logits."""
        copies = self.copies(state, batches, problem)
        losses = problem.reduce.all_gather(copies.losses)
        weights = state.memory["logits"].softmax(-1) / (losses + EPSILON)
        weights = weights / weights.sum(-1, keepdim=True)
        state = state._replace(memory=state.memory | {"weights": weights.to(state.memory["weights"].dtype)})
        before = losses if self.inner_steps == 1 else self._losses(state.params, state, batches, problem)
        after, metrics = self.combine(state, batches, problem, copies)
        decrease = (before + EPSILON).log() - (self._losses(after.params, state, batches, problem) + EPSILON).log()
        return after._replace(memory=after.memory | self._update_logits(state.memory, decrease)), metrics

    def direction(self, gram: Tensor, centre: Centre | None, state: State) -> Direction:
        """Return the weights of this round, which do not depend on inner products; the same in all blocks."""
        return weighted_direction(gram, state.memory["weights"].to(gram.dtype).expand(gram.shape[:-1]))

    def _losses(self, params: Params, state: State, batches: list[Batch], problem: Problem) -> Tensor:
        """Return the loss of each domain on its first minibatch, with the random numbers of its copy: [K]."""
        K = problem.num_domains
        live = trees.repeat(problem.live_buffers(state), K)
        rows = problem.reduce.local_rows((live, random.split(self.random_key(state), K)))

        def loss(batches: list[Batch], live: Params, key: Tensor) -> Tensor:
            copy = state._replace(buffers=state.buffers | live, key=key)
            return problem.model(params, copy).risks(batches[0])[0]

        losses: Tensor = problem.reduce.all_gather(problem.each_domain(loss, batches, *rows))
        return losses

    def _update_logits(self, memory: dict[str, Tensor], decrease: Tensor) -> dict[str, Tensor]:
        """Return the logits and the state of their Adam after one step, or unchanged if a loss is not finite."""
        z = memory["logits"].softmax(-1)
        gradient = z * (decrease - (z * decrease).sum(-1, keepdim=True))  # Σ_i decrease_i ∇z_i
        before = {"logits": memory["logits"], **{name: memory[name] for name in MOMENTS}}
        params, moments = Adam(self.logit_lr, self.logit_decay).update(
            {"logits": before["logits"]},
            {"logits": gradient.to(before["logits"].dtype)},
            {name: before[name] for name in MOMENTS},
        )
        updated: dict[str, Tensor] = trees.where(gradient.isfinite().all(), {**params, **moments}, before)
        return updated
