"""GGA: a search for weights where the gradients agree, before steps of ERM."""

import pytest
import torch
from support import K, assert_close, batches, needs_gpu, steps, toy, trial
from torch.func import grad

from pogm import ERM, Batch, Learner
from pogm.algorithms.gga import GGA
from pogm.core import random, trees
from pogm.core.flat_params import unflatten
from pogm.engine.engine import Engine
from pogm.engine.session import Session

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


@pytest.mark.parametrize("count", [1, 2])
def test_a_session_computes_the_search_only_in_the_phase(count, monkeypatch):
    """Two trials run by vmap, where the number of the step is not known. An evaluation replaces the state."""
    searched, search = [], GGA.search
    monkeypatch.setattr(GGA, "search", lambda *given: searched.append(number) or search(*given))
    method = GGA(searches=1, start_anneal_iters=2, end_anneal_iters=4)
    session = Session([trial(method, seed=seed).task(None) for seed in range(count)], Engine())
    for number in range(7):
        session.step()
        if number == 3:
            session.fetch_metrics()
    assert session.uses_vmap == (count > 1)
    assert searched == [2, 3, 4]


def test_a_learner_computes_the_search_only_in_the_phase(monkeypatch):
    searched, search = [], GGA.search
    monkeypatch.setattr(GGA, "search", lambda *given: searched.append(number) or search(*given))
    learner = Learner(torch.nn.Linear(4, 3), GGA(searches=1, start_anneal_iters=1, end_anneal_iters=2))
    for number in range(4):
        learner.step([(torch.full((5, 4), 1.0 + number), torch.arange(5) % 3) for _ in range(K)])
    assert searched == [1, 2]


@pytest.mark.gpu
@needs_gpu
def test_each_phase_has_a_cuda_graph():
    method = GGA(searches=2, start_anneal_iters=2, end_anneal_iters=3, radius=1e-3)
    task = trial(method, precision="fp64").task(None)
    captured, eager = (Session([task], Engine("cuda", capture=capture)) for capture in (True, False))
    for _ in range(6):
        captured.step()
        eager.step()
    assert set(captured.advance.graphs) == {(False, 0), (False, 1)}
    assert_close(captured.train_state, eager.train_state, 1e-9)


def test_with_one_domain_it_is_erm():
    assert_close(steps(GGA(**SEARCH), 3, domains=1), steps(ERM(), 3, domains=1))
