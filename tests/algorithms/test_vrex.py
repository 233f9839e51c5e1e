"""VREx."""

import torch
from support import K, batches, toy

from pogm import ERM
from pogm.algorithms.vrex import VREx
from pogm.core.batch import Batch


def loss_at(vrex, batch):
    state, problem = toy(vrex)
    model = problem.model(state.params, state)
    return vrex.loss(model, batch, state), model.risks(batch)


def test_loss_is_mean_risk_plus_population_variance():
    loss, risks = loss_at(VREx(penalty=7.0, penalty_anneal_iters=0), batches()[0])
    mean = sum(risks) / K
    variance = sum((risk - mean) ** 2 for risk in risks) / K
    torch.testing.assert_close(loss.metrics["nll"], mean)
    torch.testing.assert_close(loss.metrics["penalty"], variance)
    torch.testing.assert_close(loss.value, mean + 7 * variance)


def test_gradient_weights_domains_by_distance_from_the_mean():
    """d/dL_k of mean + lambda var is (1 + 2 lambda (L_k - mean)) / K: negative weights below the mean."""
    vrex = VREx(penalty=3.0, penalty_anneal_iters=0)
    state, problem = toy(vrex)
    (batch,) = batches()
    found, _ = vrex.gradient(state, batch, problem)
    risks = problem.model(state.params, state).risks(batch)
    weights = (1 + 2 * 3 * (risks - risks.mean())) / K
    expected = {name: torch.zeros_like(leaf) for name, leaf in state.params.items()}
    for k in range(K):
        own, _ = ERM().gradient(state, Batch(batch.x[k : k + 1], batch.y[k : k + 1]), problem)
        expected = {name: leaf + weights[k] * own[name] for name, leaf in expected.items()}
    torch.testing.assert_close(found, expected)


def test_equal_risks_have_no_penalty():
    (batch,) = batches()
    same = Batch(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    loss, risks = loss_at(VREx(penalty=1e4, penalty_anneal_iters=0), same)
    assert loss.metrics["penalty"] < 1e-30
    torch.testing.assert_close(loss.value, risks[0])


def test_one_domain_gives_erm():
    vrex = VREx(penalty_anneal_iters=0)
    state, problem = toy(vrex, domains=1)
    (batch,) = batches(domains=1)
    found, _ = vrex.gradient(state, batch, problem)
    expected, _ = ERM().gradient(state, batch, problem)
    torch.testing.assert_close(found, expected)
    assert vrex.min_domains == 1
