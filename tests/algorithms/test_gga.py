"""GGA: a search for weights where the gradients agree, before steps of ERM."""

import pytest
import torch
from support import K, assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM, Batch
from pogm.algorithms.gga import GGA
from pogm.core import random, trees
from pogm.core.flat_params import unflatten

SEARCH = {"start_anneal_iters": 0, "end_anneal_iters": 3, "radius": 0.05}


def measure(params, state, batch, problem):
    """Return the least cosine of the gradients of two domains, and the mean risk, in loops."""
    rows, risks = [], []
    for k in range(K):
        one = Batch(batch.x[k : k + 1], batch.y[k : k + 1])
        gradient = grad(lambda p, one=one: problem.model(p, state).losses(one).mean())(params)
        rows.append(torch.cat([leaf.flatten() for leaf in gradient.values()]))
        risks.append(problem.model(params, state).losses(one).mean())
    pairs = [(i, j) for i in range(K) for j in range(i)]
    return min(torch.cosine_similarity(rows[i], rows[j], dim=0).item() for i, j in pairs), sum(risks).item() / K


def naive_search(method, state, batch, problem):
    """Return the best point, with branches, and the number of accepted candidates."""
    best, (similarity, risk), count = state.params, measure(state.params, state, batch, problem), 0
    candidate = state.params
    for number in range(method.searches):
        size = sum(leaf.numel() for leaf in candidate.values())
        noise = method.radius * (2 * random.uniform(method.random_key(state, 2 + number), (size,)) - 1)
        candidate = trees.add(candidate, unflatten(noise, state.params))
        found, value = measure(candidate, state, batch, problem)
        if found > similarity and value - risk < 0.1:
            best, similarity, risk, candidate, count = candidate, found, value, state.params, count + 1
    return best, count


@pytest.mark.parametrize("searches", [1, 8])
def test_step_in_the_phase_is_erm_from_the_best_candidate(searches):
    method = GGA(searches=searches, **SEARCH)
    state, problem = toy(method)
    (batch,) = batches()
    best, count = naive_search(method, state, batch, problem)
    expected, _ = ERM().step(state._replace(params=best), [batch], problem)
    after, metrics = method.step(state, [batch], problem)
    assert_close(after, expected)
    assert metrics["accepted"] == count
    assert count > 0 or searches == 1


def test_similarity_never_decreases_and_the_risk_increases_at_most_by_the_tolerance_per_candidate():
    method = GGA(searches=8, **SEARCH)
    state, problem = toy(method)
    (batch,) = batches()
    best, count = method.search(state, batch, problem)
    before, after = (measure(params, state, batch, problem) for params in (state.params, best))
    assert after[0] > before[0]
    assert after[1] < before[1] + 0.1 * count


def test_candidates_that_increase_the_risk_too_much_are_rejected(monkeypatch):
    monkeypatch.setattr("pogm.algorithms.gga.TOLERANCE", -torch.inf)
    method = GGA(searches=8, **SEARCH)
    state, problem = toy(method)
    best, count = method.search(state, batches()[0], problem)
    assert_close(best, state.params, 0.0)
    assert count == 0


def test_outside_of_the_phase_it_is_erm_whether_the_search_is_skipped_or_computed():
    """Under vmap the step is not known, so the search is computed and its result is not used."""
    method = GGA(searches=2, start_anneal_iters=5, end_anneal_iters=9, radius=0.05)
    assert_close(steps(method, 4), steps(ERM(), 4), 0.0)
    state, problem = toy(method)
    (batch,) = batches()
    rows = trees.map_leaves(lambda leaf: torch.stack([leaf, leaf]), state)
    mapped, metrics = torch.func.vmap(lambda row: method.step(row, [batch], problem))(rows)
    assert_close(trees.index(mapped, 0), ERM().step(state, [batch], problem)[0])
    assert metrics["accepted"].tolist() == [0, 0]


def test_with_one_domain_it_is_erm():
    assert_close(steps(GGA(**SEARCH), 3, domains=1), steps(ERM(), 3, domains=1))
