"""GGA: in an early phase, search for weights near the current ones where the domains' gradients agree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.domain_gradients import domain_gradients
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.flat_params import flat_vector, unflatten
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Params
from pogm.pareto import gramian

TOLERANCE = 0.1  # largest increase of the mean risk that is accepted, as in the authors' code
ERM_PHASE, SEARCH_PHASE = 0, 1


@dataclass(frozen=True)
class GGA(Algorithm):
    r"""Gradient-guided annealing (Ballas and Diou, 2025): start early steps where the gradients of the domains agree.

    .. math:: \theta' \leftarrow \theta' + \epsilon, \quad \epsilon \sim U(-\rho, \rho)^P, \qquad
        \theta^* \leftarrow \theta' \text{ if } s(\theta') > s(\theta^*) \text{ and } L(\theta') < L(\theta^*) + 0.1,
        \qquad s = \min_{i \ne j} \cos(\nabla L_i, \nabla L_j)

    In the steps from ``start_anneal_iters`` to ``end_anneal_iters``, ``searches`` candidates θ' are tried on the
    minibatch of the step; both θ' and θ* start at θ. After a candidate is accepted, θ' returns to θ; after others it
    walks on, as in the authors' code. Then, and in all other steps, ERM takes one step from θ*. This is a
    random search in which the gradients select a candidate; despite the name, there is no temperature that decreases.

    Differences from the authors' code: the code tries 250 candidates per step, and adds noise only to tensors 10 to 155
    of a ResNet-50; this class adds noise to all weights. A candidate costs as much as a step of ERM, so a phase with
    250 candidates costs more than twice as much as 5000 steps of ERM; the default is 10. The code has an option for a
    second phase. The range of ρ is our choice. The defaults of the phase are those of the authors for PACS. They use
    steps 500 to 600 for TerraIncognita and 100 to 200 for the other datasets. With one domain this is ERM.

    Args:
        radius: Largest change ρ of a weight in one candidate.
        searches: Number of candidates in a step of the phase.
        start_anneal_iters: First step of the phase.
        end_anneal_iters: Last step of the phase.
    """

    radius: float = hyper(1e-6, Choice(1e-6, 1e-5, 1e-4), above=0, draw_as="gga_rho")  # ρ
    searches: int = hyper(10, least=1)
    start_anneal_iters: int = hyper(100, least=0)
    end_anneal_iters: int = hyper(150, least=0)

    def phase_at(self, step: int) -> int:
        """Return the search phase from ``start_anneal_iters`` to ``end_anneal_iters``, and ERM's phase elsewhere."""
        return SEARCH_PHASE if self.start_anneal_iters <= step <= self.end_anneal_iters else ERM_PHASE

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Search for a better starting point, if the step is in the phase; then take one step of ERM from there."""
        accepted = torch.zeros_like(state.step)
        if problem.phase != ERM_PHASE:
            searching = (state.step >= self.start_anneal_iters) & (state.step <= self.end_anneal_iters)
            start, count = self.search(state, batches[0], problem)
            params = trees.where(searching, start, state.params)
            state, accepted = state._replace(params=params), torch.where(searching, count, 0)
        after, metrics = super().step(state, batches, problem)
        return after, metrics | {"accepted": accepted.double()}

    def search(self, state: State, batch: Batch, problem: Problem) -> tuple[Params, Tensor]:
        """Return θ*, and the number of accepted candidates."""
        origin = flat_vector(state.params)
        best = candidate = origin
        similarity, risk = self._measure(state, batch, problem)
        accepted = torch.zeros_like(state.step)
        for number in range(self.searches):
            noise = 2 * random.uniform(self.random_key(state, 2 + number), (origin.numel(),)) - 1
            candidate = candidate + (self.radius * noise).to(origin.dtype)
            params = unflatten(candidate, state.params)
            found, value = self._measure(state._replace(params=params), batch, problem)
            better = (found > similarity) & (value < risk + TOLERANCE)
            best = torch.where(better, candidate, best)
            similarity, risk = torch.where(better, found, similarity), torch.where(better, value, risk)
            candidate = torch.where(better, origin, candidate)
            accepted = accepted + better
        return unflatten(best, state.params), accepted

    def _measure(self, state: State, batch: Batch, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the least cosine between gradients of two domains, and the mean risk."""
        gradients, loss = domain_gradients(state, batch, problem, self.random_key(state, 1))
        G = gramian(gradients)
        norms = G.diagonal().sqrt()
        pairs = ~torch.eye(len(G), dtype=torch.bool, device=G.device)
        return torch.where(pairs, G / (norms * norms.unsqueeze(-1)), torch.inf).amin(), loss.value
